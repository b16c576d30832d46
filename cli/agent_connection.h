// Connects to the node's agent.
#ifndef SLUICE_CLI_AGENT_CONNECTION_H_
#define SLUICE_CLI_AGENT_CONNECTION_H_

#include <memory>
#include <string>

#include "agent.grpc.pb.h"

namespace CLI {
class App;
}

namespace sluice::cli {

// "<run-dir>/sluice.sock".
std::string SocketIn(const std::string& run_dir);
// Whether a process listens at the socket. errno tells why not.
bool AgentListens(const std::string& socket);
std::unique_ptr<v1::Agent::Stub> Connect(const std::string& socket);

// Adds --run-dir. Default: $SLUICE_RUN_DIR, else the usual directory.
void AddRunDirOption(CLI::App& command, std::string* run_dir);

// Prints "sluice: ..." and throws the exit status.
[[noreturn]] void Fail(int status, const std::string& text);
// The stub of the node's agent; Fail() where none answers.
std::unique_ptr<v1::Agent::Stub> NeedAgent(const std::string& run_dir);
// Fail() with the sentence of a failed call. Status 2 for INVALID_ARGUMENT and NOT_FOUND, which the caller wrote;
// else 1.
[[noreturn]] void FailCall(const grpc::Status& status);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_AGENT_CONNECTION_H_
