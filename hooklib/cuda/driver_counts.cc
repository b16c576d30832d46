#include "hooklib/cuda/driver_counts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "hooklib/dispatch/real.h"

namespace sluice {

namespace {

// Numbers and layouts of the driver's interface, the same in 535 and 580.
constexpr unsigned long kInit = 56, kEnable = 60;
constexpr size_t kPageBytes = 4096;

struct InitArguments {
  uint64_t queue, queue_records, page;  // no queue: counters
  unsigned char uuid[16];
  uint32_t all_cards, space, status;
};
struct EnableArguments {
  uint64_t counters;  // bits by place in the page
  uint32_t status;
};
static_assert(sizeof(InitArguments) == 56 && sizeof(EnableArguments) == 16);

int OpenDevice() { return open("/dev/nvidia-uvm-tools", O_RDWR | O_CLOEXEC); }

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

DriverCounts::~DriverCounts() {
  if (device_ >= 0) close(device_);
  if (page_) munmap(page_, kPageBytes);
}

bool DriverCounts::Refused(std::string why) {
  why_ = std::move(why);
  if (device_ >= 0) close(device_);
  device_ = -1;
  return false;
}

bool DriverCounts::Open(const unsigned char* uuid) {
  if (std::exchange(tried_, true)) return counting();
  device_ = kernel_.open();
  if (device_ < 0) return Refused(std::string("/dev/nvidia-uvm-tools: ") + std::strerror(errno));
  // Shared: after a fork both processes see the page that the driver adds to.
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return Refused(std::string("no page: ") + std::strerror(errno));
  std::string why = "no descriptor of /dev/nvidia-uvm";
  for (const int space : kernel_.spaces(device_)) {
    InitArguments init{};
    init.page = reinterpret_cast<uint64_t>(page);
    if (uuid) std::memcpy(init.uuid, uuid, sizeof init.uuid);
    init.all_cards = uuid ? 0 : 1;
    init.space = static_cast<uint32_t>(space);
    EnableArguments enable{uint64_t{1} << kToCard | uint64_t{1} << kToHost | uint64_t{1} << kFaults, 0};
    if (kernel_.control(device_, kInit, &init) != 0) {
      why = std::string("it takes no tracker: ") + std::strerror(errno);
    } else if (init.status != 0) {
      why = "it answers status " + std::to_string(init.status);  // a descriptor of another kind, or no permission
    } else if (kernel_.control(device_, kEnable, &enable) != 0 || enable.status != 0) {
      why = "it does not count";
      break;
    } else {
      page_ = static_cast<uint64_t*>(page);
      return true;
    }
  }
  Refused(std::move(why));  // nothing is written to the page from here on
  munmap(page, kPageBytes);
  return false;
}

}  // namespace sluice
