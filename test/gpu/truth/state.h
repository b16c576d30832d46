// The state of the truth recorder, which lives as long as the process.
#ifndef SLUICE_TEST_GPU_TRUTH_STATE_H_
#define SLUICE_TEST_GPU_TRUTH_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "shadow.h"
#include "trace/recorder.h"

namespace sluice::truth {

using Ranges = std::vector<trace::AccessRange>;

// Set by InitializeInjection.
inline trace::Recorder* g_recorder = nullptr;
inline uint64_t g_managed_limit = 0;
inline int g_slow_from = -1, g_light_from = -1;
inline double g_seconds = 60;
inline bool g_verbose = false;

inline int g_step = -1;
inline uint64_t g_managed = 0;                            // bytes
inline std::atomic<bool> g_slow = false, g_over = false;  // launches are measured; the time for that is over
inline std::atomic<const char*> g_phase = "loading";      // for the log
inline std::atomic<bool> g_moved_by_copy = false;         // copies and memsets may have made pages resident

// A slow launch: its transfers, and its time by CUPTI's clock.
struct Measured {
  uint64_t ordinal, begin, end;
  Ranges faulted, guessed, changed;
  bool compared = false;
};

// Lock order: g_launch (one launch at a time in slow mode), then g_data.
inline std::mutex g_launch, g_data;

// Under g_launch once launches are measured:
inline Shadow g_shadow;

// Under g_data:
inline Ranges g_stale;                                      // written by copies and memsets: the shadow is older
inline std::deque<Measured> g_open;                         // the newest last; the oldest is written out when full
inline std::unordered_map<uint32_t, uint64_t> g_launch_of;  // CUPTI's correlation id -> ordinal
inline std::map<uint64_t, uint64_t> g_blocks;               // managed allocations
inline std::map<uint64_t, uint64_t> g_library_blocks;       // cuMemAlloc's, by libraries
inline std::map<uint64_t, uint64_t> g_tensors;              // reported by PyTorch's allocator
inline Ranges g_fetched;                                    // to be evicted before the next launch
inline Ranges g_between;                                    // moved while no launch was being measured
inline bool g_measuring = false;
inline uint64_t g_arrived = 0;  // records of the launch being measured

// Counters for the log, under g_data.
struct Counters {
  uint64_t launches = 0, measured = 0, empty = 0;  // empty: without any transfer
  uint64_t transfers = 0, guesses = 0, late = 0, other_causes = 0, lost = 0, dropped = 0;  // records
  uint64_t in_bytes = 0, changed_bytes = 0, overwritten_bytes = 0;
  uint64_t out_bytes = 0;  // evicted while slow: more than in_bytes means that records were lost
};
inline Counters g_counters;

}  // namespace sluice::truth

#endif  // SLUICE_TEST_GPU_TRUTH_STATE_H_
