// Which launches may leave what they touch in host memory, where the GPU reads and writes it over the link (UVM's
// accessed-by advice).
//
// A kernel that streams (an optimizer's update, a decoder's small-batch GEMM) passes over host memory at the link's
// rate, without faults and without moving a page: 24 ms a GiB read and written on an H200, where fetching takes 22 and
// sending away what makes room 70. A kernel that reads its operands again and again crawls (a GEMM of 16,384 rows over
// 128 MiB of weights: 232 ms instead of 2.5). Nothing in a launch tells one from the other, so it is measured, per
// execution id, first on a few chunks, later now and then. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_CORE_HOST_ACCESS_H_
#define SLUICE_HOOKLIB_CORE_HOST_ACCESS_H_

#include <cstdint>
#include <unordered_map>

namespace sluice::core {

// One launch with host-resident bytes that is to be timed.
struct HostProbe {
  uint64_t id = 0;        // execution id; 0: nothing to time
  uint64_t host = 0;      // bytes of its set in host memory
  uint64_t resident = 0;  // bytes of its set on the card
  bool oversize = false;  // the set is larger than all that may be resident: faults are what it is compared with
};

class HostAccess {
 public:
  enum class Verdict : uint8_t {
    kTry,      // unknown: some chunks may stay in host memory, and the launch is timed
    kStreams,  // stays in host memory at no more than the link's price
    kFetch,    // re-reads: bring it
  };

  // Of an execution id at launch number `now`. `oversize` as in HostProbe, judged apart.
  Verdict Of(uint64_t id, bool oversize, uint64_t now);
  // Whether the launch that was answered kStreams is one of those that are timed again.
  bool Due(uint64_t id, bool oversize);
  // The launch is tried; until its time is known, others of its id fetch.
  void Trying(const HostProbe& probe, uint64_t now);
  // How long the timed launch ran, in ns of the GPU's clock.
  void Measured(const HostProbe& probe, uint64_t ns, uint64_t now);
  // How many bytes a first try leaves in host memory, for a launch with `resident` bytes on the card beside them: few,
  // but enough to be seen in its time.
  static uint64_t TryBytes(uint64_t resident);

 private:
  struct Habit {
    Verdict verdict = Verdict::kTry;
    uint8_t failures = 0;
    uint32_t launches = 0;  // with host-resident bytes, since it was found to stream
    uint64_t retry_at = 0;  // launch number
  };
  static uint64_t Key(uint64_t id, bool oversize) { return id ^ (oversize ? 0x5851f42d4c957f2du : 0); }
  std::unordered_map<uint64_t, Habit> habits_;
};

}  // namespace sluice::core

#endif  // SLUICE_HOOKLIB_CORE_HOST_ACCESS_H_
