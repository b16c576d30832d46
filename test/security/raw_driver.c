/* A program that reaches the driver by its device file alone, without libcuda: a static binary, which no preloaded
 * library enters. raw_driver [DEVICE]: opens it, makes a raw call, prints "ready" and waits for the end of stdin. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(int argc, char** argv) {
  char byte = 0, info[4096] = {0};
  const int fd = open(argc > 1 ? argv[1] : "/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  /* NV_ESC_CARD_INFO of open-gpu-kernel-modules (nv-ioctl-numbers.h); without a driver it fails. */
  if (fd >= 0) (void)ioctl(fd, _IOWR('F', 200, info), info);
  puts("ready");
  fflush(stdout);
  while (read(0, &byte, 1) > 0) {
  }
  return 0;
}
