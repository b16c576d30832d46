#include "hooklib/engine/observe/uvm_tools.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "hooklib/dispatch/real.h"

namespace sluice {

namespace {

int OpenDevice() { return client::MoveToHighNumber(open("/dev/nvidia-uvm-tools", O_RDWR | O_CLOEXEC)); }

int ControlDevice(int device, unsigned long request, void* argument) { return ioctl(device, request, argument); }

std::vector<int> FindSpaces(int) {
  std::vector<int> found;
  DIR* folder = opendir("/proc/self/fd");
  if (!folder) return found;
  while (const dirent* entry = readdir(folder)) {
    char target[64];
    const ssize_t n = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
    if (n <= 0) continue;
    target[n] = 0;
    if (std::strcmp(target, "/dev/nvidia-uvm") == 0)
      found.push_back(static_cast<int>(std::strtol(entry->d_name, nullptr, 10)));
  }
  closedir(folder);
  return found;
}

}  // namespace

KernelSide TheKernelSide() {
  if (g_real.simgpu_uvm_open && g_real.simgpu_uvm_ioctl)
    return {g_real.simgpu_uvm_open, g_real.simgpu_uvm_ioctl, [](int device) { return std::vector<int>{device}; }};
  return {OpenDevice, ControlDevice, FindSpaces};
}

namespace uvm_tools {

int Open(const KernelSide& kernel, unsigned long request, InitArguments what, const unsigned char* uuid,
         std::string* why) {
  const int device = kernel.open();
  if (device < 0) {
    *why = std::string("/dev/nvidia-uvm-tools: ") + std::strerror(errno);
    return -1;
  }
  *why = "no descriptor of /dev/nvidia-uvm";
  for (const int space : kernel.spaces(device)) {
    InitArguments init = what;
    if (uuid) std::memcpy(init.uuid, uuid, sizeof init.uuid);
    init.all_cards = uuid ? 0 : 1;
    init.space = static_cast<uint32_t>(space);
    if (kernel.control(device, request, &init) != 0) {
      *why = std::string("it takes no tracker: ") + std::strerror(errno);
    } else if (init.status != 0) {
      *why = "it answers status " + std::to_string(init.status);  // a descriptor of another kind, or no permission
    } else {
      return device;
    }
  }
  close(device);
  return -1;
}

bool Set(const KernelSide& kernel, const client::Descriptor& device, unsigned long request, uint64_t bits) {
  Flags flags{bits, 0};
  return device.IsOurs() && kernel.control(device.fd(), request, &flags) == 0 && flags.status == 0;
}

void* SharedPages(size_t bytes) {
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

}  // namespace uvm_tools
}  // namespace sluice
