// The way to the node's agent: where its socket is, and how to speak to it.
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
// The socket is there and somebody listens.
bool AgentListens(const std::string& socket);
std::unique_ptr<v1::Agent::Stub> Connect(const std::string& socket);

// Adds --run-dir with the environment's or the usual default.
void AddRunDirOption(CLI::App& command, std::string* run_dir);

// Prints "sluice: ..." and throws the exit status.
[[noreturn]] void Fail(int status, const std::string& text);
// For a command that needs the node's agent: the stub, or Fail().
std::unique_ptr<v1::Agent::Stub> NeedAgent(const std::string& run_dir);
// Fail() with the sentence of a call that did not succeed; INVALID_ARGUMENT and NOT_FOUND are the caller's fault: 2.
[[noreturn]] void FailCall(const grpc::Status& status);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_AGENT_CONNECTION_H_
