// The fraction that a container needs: by the largest working set of the last day. Pure; not thread-safe.
#ifndef SLUICE_AGENT_RIGHT_SIZE_H_
#define SLUICE_AGENT_RIGHT_SIZE_H_

#include <array>
#include <cstdint>
#include <string>

#include "agent/ledger.h"

namespace sluice::agent {

// The largest value of the last 24 hours, and of the hour that they began in: one value for each hour.
//
// A program touches all of its memory once while it starts: it loads weights, clears caches, tries batch sizes. So the
// first `startup_ns` of its work do not count. Time without work does not end the start, since nothing is seen then.
class DayPeak {
 public:
  struct Sample {
    Bytes touched = 0;   // by all processes of the container
    bool lives = false;  // some process has memory
    bool works = false;  // some process launches
  };
  // `now_ns`: monotonic. To be called every second or so; longer gaps count as one second.
  void Observe(const Sample& sample, uint64_t startup_ns, uint64_t now_ns);
  // Whether a container was watched beyond its start: before, nothing is known.
  bool is_known() const { return is_known_; }
  Bytes Peak(uint64_t now_ns) const;  // 0: not known

 private:
  struct Hour {
    uint64_t number = 0;  // plus one; 0: none
    Bytes peak = 0;
  };
  std::array<Hour, 25> hours_{};
  uint64_t observed_ns_ = 0, worked_ns_ = 0;  // the last call; work since the first process of now had memory
  bool is_known_ = false;
};

// One container on one GPU.
struct Footprint {
  Bytes peak = 0;          // the working set's
  Bytes live = 0;          // allocated now, resident or not
  Bytes unmanaged = 0;     // of it, memory that always stays on the GPU
  Bytes size = 0;          // of the container's fraction; 0: none
  Bytes gpu = 0;           // what all fractions of the GPU are parts of
  bool by_memory = false;  // the size was asked for as gpu-memory
};

struct RightSize {
  double needed = 0;  // part of the GPU that is enough; may exceed 1
  // Half of the fraction would do, or a quarter more is needed.
  bool is_far_off = false;
  std::string text;  // the sentence for people
};

RightSize FindRightSize(const Footprint& footprint);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_RIGHT_SIZE_H_
