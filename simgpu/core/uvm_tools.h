// The kernel's side of /dev/nvidia-uvm-tools, as far as the hook uses it. The caller passes pages for counters of moved
// bytes, and a queue for records of faults. Request numbers, structures, and the places in page and record are the
// driver's.
#ifndef SIMGPU_CORE_UVM_TOOLS_H_
#define SIMGPU_CORE_UVM_TOOLS_H_

#include <cstdint>
#include <map>

namespace simgpu {

class UvmTools {
 public:
  enum Counter { kToCard = 0, kToHost = 1, kCardFaults = 9, kCounters = 10 };
  // As open and ioctl: -1 with errno. SIMGPU_UVM_TOOLS=0: the device is missing; =counters: it refuses queues.
  static int Open();
  int Control(int device, unsigned long request, void* argument);
  void Count(int card, Counter counter, uint64_t amount);
  // Whether a tracker records faults of the card, which makes them slower.
  bool Records(int card) const;
  void RecordFault(int card, uint64_t address);

 private:
  struct Tracker {
    uint64_t* page;
    char* queue;  // null: it counts
    uint32_t records, record_bytes;
    uint8_t uuid[16];
    bool all;
    uint64_t enabled;
  };
  static bool IsOf(const Tracker& tracker, int card);
  std::map<int, Tracker> trackers_;
};

}  // namespace simgpu

#endif  // SIMGPU_CORE_UVM_TOOLS_H_
