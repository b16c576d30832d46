// The findings of `sluice doctor` about GPUs and hooked processes, from an agent's status.
#ifndef SLUICE_CLI_DOCTOR_PROCESSES_H_
#define SLUICE_CLI_DOCTOR_PROCESSES_H_

#include <string>
#include <vector>

#include "agent.pb.h"
#include "cli/doctor_placement.h"

namespace sluice::cli {

// Processes of one allocation that use driver functions newer than the hook's table, as one warning; none: no finding.
// `name`: how the finding calls the allocation. The agent's /status.json has no process ids, so a finding from it
// counts processes.
std::vector<Finding> JudgeNewerEntries(const std::string& name, const v1::AllocationStatus& allocation);

// A warning for each GPU of the allocation of which half of its part would do, or of which it needs a quarter more.
std::vector<Finding> JudgeSize(const std::string& name, const v1::AllocationStatus& allocation);

// A warning where the driver limits the agent's own cgroup on the GPU (driver 615 and later). `name`: how the finding
// begins.
std::vector<Finding> JudgeCgroup(const std::string& name, const v1::Gpu& gpu);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_DOCTOR_PROCESSES_H_
