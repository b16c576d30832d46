// `sluice record` and `sluice replay`.
#ifndef SLUICE_TRACE_TOOLS_COMMANDS_H_
#define SLUICE_TRACE_TOOLS_COMMANDS_H_

namespace CLI {
class App;
}

// Adds the two subcommands. Their callbacks end by throwing CLI::RuntimeError with the exit status: for record the
// program's, 2 for a wrong option, 1 where the trace or the GPU cannot be used.
void AddTraceCommands(CLI::App& app);

#endif  // SLUICE_TRACE_TOOLS_COMMANDS_H_
