// The kernel's side of /dev/nvidia-uvm-tools, as far as the hook uses it: counters of what the driver moves, in pages
// of the process that asked. The interface is the driver's: the same request numbers, structures and places in the
// page.
#ifndef SIMGPU_CORE_UVM_TOOLS_H_
#define SIMGPU_CORE_UVM_TOOLS_H_

#include <cstdint>
#include <map>

namespace simgpu {

class UvmTools {
 public:
  enum Counter { kToCard = 0, kToHost = 1, kCardFaults = 9, kCounters = 10 };
  // As open and ioctl: -1 with errno. SIMGPU_UVM_TOOLS=0: there is no such device.
  static int Open();
  int Control(int device, unsigned long request, void* argument);
  void Count(int card, Counter counter, uint64_t amount);

 private:
  struct Tracker {
    uint64_t* page;
    uint8_t uuid[16];
    bool all;
    uint64_t enabled;
  };
  std::map<int, Tracker> trackers_;
};

}  // namespace simgpu

#endif  // SIMGPU_CORE_UVM_TOOLS_H_
