// The commands of this folder. Those of other parts come from their own libraries, with the same signature. A callback
// gives its exit status by throwing CLI::RuntimeError.
#ifndef SLUICE_CLI_COMMANDS_H_
#define SLUICE_CLI_COMMANDS_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sluice::cli {

// What stands behind "--" of `sluice run`: taken off before the flags are parsed, so that nothing in it is taken for
// one of ours.
std::vector<std::string>& ProgramArguments();

void AddRunCommand(CLI::App& app);
void AddStatusCommand(CLI::App& app);
void AddSetCommand(CLI::App& app);
void AddTopCommand(CLI::App& app);
void AddEventsCommand(CLI::App& app);
void AddDoctorCommand(CLI::App& app);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMANDS_H_
