#include "cli/doctor_processes.h"

#include <algorithm>
#include <set>

#include "cli/paths.h"
#include "cli/table.h"
#include "cli/text.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMaxNames = 5;  // processes named in a line; the others are counted

}  // namespace

std::vector<Finding> JudgeNewerEntries(const std::string& name, const v1::AllocationStatus& allocation) {
  uint64_t entries = 0;
  std::size_t processes = 0;
  std::string named;
  std::set<std::string> versions;
  for (const v1::Process& process : allocation.processes()) {
    uint64_t of_process = 0;  // the hook publishes the same count for each of its GPUs
    for (const v1::Counters& gpu : process.gpus()) of_process = std::max(of_process, gpu.newer_entries());
    if (of_process == 0) continue;
    entries = std::max(entries, of_process);
    ++processes;
    if (!process.hook_version().empty()) versions.insert(Printable(process.hook_version()));
    if (process.pid() == 0 || processes > kMaxNames) continue;
    named +=
        (named.empty() ? ": pid " : ", ") + std::to_string(process.pid()) + " (" + Printable(process.command()) + ")";
  }
  if (processes == 0) return {};
  if (!named.empty() && processes > kMaxNames) named += " and " + std::to_string(processes - kMaxNames) + " more";
  const std::string sluice = versions.empty() ? "" : " " + Join({versions.begin(), versions.end()}, ", ");
  return {{Finding::kWarn,
           name + ": " + std::to_string(processes) + (processes == 1 ? " process uses " : " processes use up to ") +
               std::to_string(entries) + " driver function" + (entries == 1 ? "" : "s") + " newer than " +
               (processes == 1 ? "its" : "their") + " sluice" + sluice + named +
               ": the hook does not see their calls, so memory that they allocate is outside the budget",
           "the program's log names them (\"is newer than this sluice\"); install a sluice that knows them and restart "
           "the program, or let it use an older CUDA"}};
}

std::vector<Finding> JudgeSize(const std::string& name, const v1::AllocationStatus& allocation) {
  std::vector<Finding> out;
  for (const v1::GpuShare& gpu : allocation.gpus()) {
    if (!gpu.size_is_far_off()) continue;
    out.push_back({Finding::kWarn,
                   name + (allocation.gpus_size() > 1 ? ", GPU " + gpu.uuid() : "") + ": " +
                       Printable(gpu.size_advice()) +
                       " (working set of the last day: " + Bytes(gpu.touched_peak_bytes()) + ")",
                   "change the pod's annotation; of a running container, `sluice set` changes it"});
  }
  return out;
}

std::vector<Finding> JudgeCgroup(const std::string& name, const v1::Gpu& gpu) {
  if (gpu.cgroup_bytes() == 0) return {};
  return {{Finding::kWarn,
           name + "GPU " + Printable(gpu.uuid()) + ": the driver limits the agent's cgroup to " +
               Bytes(gpu.cgroup_bytes()) + " of " + Bytes(gpu.memory_bytes()),
           "remove the limit of the agent's pod (nvidia-smi memory-limits), and limit users' containers alone"}};
}

}  // namespace sluice::cli
