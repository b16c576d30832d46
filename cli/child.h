// Programs that `sluice run` starts: the user's, and where none runs, an agent.
#ifndef SLUICE_CLI_CHILD_H_
#define SLUICE_CLI_CHILD_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::cli {

// Blocks the signals that are forwarded or waited for; call it first, before any thread is made. Children get the mask
// from before.
void BlockSignals();

// Starts `args` with `environment`, found along PATH. Returns the pid, or -1 with errno. `own_group`: not reached by
// the terminal's Ctrl-C.
pid_t Spawn(const std::vector<std::string>& args, const std::vector<std::string>& environment, bool own_group);

// Waits for `pid`, forwarding signals meanwhile. Returns its exit status, 128 + signal where a signal ended it.
int WaitForwarding(pid_t pid);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CHILD_H_
