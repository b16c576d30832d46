// The memory that is live at one point of a trace, by tensor.
#ifndef SLUICE_TRACE_TOOLS_LIVE_TENSORS_H_
#define SLUICE_TRACE_TOOLS_LIVE_TENSORS_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

// PyTorch's tensors, as its allocator reports them; a block without any report counts as one tensor. Not thread-safe.
class LiveTensors {
 public:
  void Apply(const Event& e);

  // The tensor that holds the address; bytes 0: none.
  Range At(uint64_t address) const;

  // The tensors that overlap [address, end).
  std::vector<Range> Over(uint64_t address, uint64_t end) const;

 private:
  using Map = std::map<uint64_t, uint64_t>;  // address -> bytes
  static Map::const_iterator Containing(const Map& map, uint64_t address);

  Map blocks_, tensors_;
  std::set<uint64_t> reported_;  // blocks with at least one report
};

inline bool Overlap(uint64_t a, uint64_t a_end, uint64_t b, uint64_t b_end) { return a < b_end && b < a_end; }

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_LIVE_TENSORS_H_
