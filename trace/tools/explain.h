// Each launch's access set in an engine, beside the pages that the launch truly touched.
#ifndef SLUICE_TRACE_TOOLS_EXPLAIN_H_
#define SLUICE_TRACE_TOOLS_EXPLAIN_H_

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

struct LaunchExplanation {
  std::string function;
  // The launch became a graph node: its memory is touched by the graph's launches, and counted there.
  bool captured = false;
  // A graph's launch: its nodes that touch memory, and the number of nodes with an access from each source.
  bool graph = false;
  size_t nodes = 0;
  std::array<size_t, kAccessSources> nodes_by_source{};
  std::string missing;                                         // why there is no truth, where known
  std::array<uint64_t, kAccessSources> predicted_by_source{};  // bytes, by AccessSource
  uint64_t predicted_bytes = 0;                                // union of the access set
  uint64_t touched_bytes = 0;                                  // truth column
  uint64_t covered_bytes = 0;                                  // touched and predicted
  bool has_truth = false;
  uint64_t untouched_bytes() const { return predicted_bytes - covered_bytes; }
};

// `replayed` was recorded by the engine while `source` was played: the same launches, graphs' too, in the same order,
// at other addresses. Blocks are matched by the order of their allocations. A graph truly touches the memory of its
// captured launches and copies. InvalidArgument where the two do not belong together.
absl::StatusOr<std::vector<LaunchExplanation>> Explain(const Trace& source, const Trace& replayed);

// A line a launch ("#12 gemm: library 12.0 MiB, parameters 4.0 MiB; touched 16.0 MiB, predicted 100.0 %"; of a graph
// "#13 graph, 3 nodes (2 by library, 1 by copy): ..."), then the kernels with the largest errors, then the totals.
std::string ExplanationText(const std::vector<LaunchExplanation>& launches);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_EXPLAIN_H_
