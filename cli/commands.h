// The commands of this folder. Other parts bring theirs in libraries of their own, with the same signature. A callback
// gives its exit status by throwing CLI::RuntimeError.
#ifndef SLUICE_CLI_COMMANDS_H_
#define SLUICE_CLI_COMMANDS_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sluice::cli {

// The arguments behind "--" of `sluice run`. main() takes them off before it parses flags: none of them is ours.
std::vector<std::string>& ProgramArguments();

void AddRunCommand(CLI::App& app);
void AddStatusCommand(CLI::App& app);
void AddSetCommand(CLI::App& app);
void AddParkCommand(CLI::App& app);
void AddWakeCommand(CLI::App& app);
void AddTopCommand(CLI::App& app);
void AddEventsCommand(CLI::App& app);
void AddDoctorCommand(CLI::App& app);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMANDS_H_
