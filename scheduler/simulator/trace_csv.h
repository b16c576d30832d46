// Lists of nodes and pods as CSV, in the columns of the published traces.
#ifndef SLUICE_SCHEDULER_SIMULATOR_TRACE_CSV_H_
#define SLUICE_SCHEDULER_SIMULATOR_TRACE_CSV_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/node_model.h"

namespace sluice::scheduler {

inline constexpr int kTraceUnitsPerCard = 1000;

struct TracePod {
  Request request;
  std::vector<std::string> models;  // acceptable GPU models; empty: any
  auto operator<=>(const TracePod&) const = default;
};

// Columns, named by the header line, in any order, others ignored: cpu_milli, memory_mib, gpu, model.
absl::StatusOr<std::vector<Node>> ParseNodes(std::string_view text, std::string_view name);
// The same for cpu_milli, memory_mib, num_gpu, gpu_milli and the optional gpu_spec (models separated by '|').
absl::StatusOr<std::vector<TracePod>> ParsePods(std::string_view text, std::string_view name);
// The same from files. Errors name the file, line, column, value and the accepted values.
absl::StatusOr<std::vector<Node>> ReadNodes(const std::string& path);
absl::StatusOr<std::vector<TracePod>> ReadPods(const std::string& path);

std::string NodesCsv(const std::vector<Node>& nodes);
std::string PodsCsv(const std::vector<TracePod>& pods);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_SIMULATOR_TRACE_CSV_H_
