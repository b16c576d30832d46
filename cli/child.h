// Child processes of `sluice run`: the user's program, and an agent where none runs.
#ifndef SLUICE_CLI_CHILD_H_
#define SLUICE_CLI_CHILD_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::cli {

// A parent may have set SIGCHLD to be ignored: then the kernel reaps children itself, and neither their end nor their
// status is ever reported. Sets it to its default. Children of Spawn get the parent's setting.
void KeepChildStatus();

// Blocks the signals that are forwarded or waited for. Call it before any thread is made. Children get the earlier
// mask.
void BlockSignals();

// Starts `args`, found along PATH, with `environment`. A script without a #! line is run by /bin/sh, as execvp does.
// Returns the pid, or -1 with errno. `own_group`: the terminal's Ctrl-C does not reach it.
pid_t Spawn(const std::vector<std::string>& args, const std::vector<std::string>& environment, bool own_group);

// Waits for `pid` and forwards signals meanwhile. Returns its exit status; 128 + signal: a signal ended it.
int WaitForwarding(pid_t pid);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CHILD_H_
