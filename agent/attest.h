// The allocation whose container a process runs in: for processes that use a GPU without a hook.
#ifndef SLUICE_AGENT_ATTEST_H_
#define SLUICE_AGENT_ATTEST_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::agent {

// The allocation whose folder is mounted at the run directory of the process's container, from the text of
// /proc/<pid>/mountinfo. The kernel writes it: a container cannot forge it. Empty: none.
std::string AllocationByMount(std::string_view mountinfo);

// The allocation in the process's environment ("SLUICE_SOCKET=<alloc_dir>/<id>/agent.sock"; entries end with NUL): for
// programs of `sluice run`, which share the node's mounts. The process itself claims it: enough for a report, not an
// identity. Empty: none.
std::string AllocationByEnvironment(std::string_view environment, std::string_view alloc_dir);

// Both, from <proc>/<pid>; the mount goes first.
std::string AllocationOfProcess(const std::string& proc, int64_t pid, const std::string& alloc_dir);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_ATTEST_H_
