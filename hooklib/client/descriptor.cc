#include "client/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sluice::client {

int MoveToHighNumber(int fd) {
  constexpr int kAbove = 200, kAboveStandard = 3;
  int higher = fd >= 0 && fd < kAbove ? fcntl(fd, F_DUPFD_CLOEXEC, kAbove) : -1;
  if (higher < 0 && fd >= 0 && fd < kAboveStandard) higher = fcntl(fd, F_DUPFD_CLOEXEC, kAboveStandard);  // few allowed
  if (higher < 0) return fd;
  close(fd);
  return higher;
}

Descriptor::Descriptor(int fd) : fd_(fd) {
  struct stat is{};
  if (fd < 0 || fstat(fd, &is) != 0) return;
  device_ = is.st_dev;
  inode_ = is.st_ino;
}

bool Descriptor::IsOurs() const {
  struct stat is{};
  return fd_ >= 0 && fstat(fd_, &is) == 0 && is.st_dev == device_ && is.st_ino == inode_;
}

void Descriptor::Close() {
  if (IsOurs()) close(fd_);
  fd_ = -1;
}

}  // namespace sluice::client
