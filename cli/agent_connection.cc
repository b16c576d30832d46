#include "cli/agent_connection.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/unix_channel.h"
#include "sluice/names.h"

namespace sluice::cli {

std::string SocketIn(const std::string& run_dir) { return run_dir + "/" SLUICE_AGENT_GRPC_SOCKET; }

bool AgentListens(const std::string& socket_path) {
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(addr.sun_path)) return false;
  std::memcpy(addr.sun_path, socket_path.c_str(), socket_path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool ok = connect(fd, reinterpret_cast<const sockaddr*>(&addr), sizeof(addr)) == 0;
  close(fd);
  return ok;
}

std::unique_ptr<v1::Agent::Stub> Connect(const std::string& socket) { return v1::Agent::NewStub(UnixChannel(socket)); }

void AddRunDirOption(CLI::App& command, std::string* run_dir) {
  *run_dir = SLUICE_HOST_AGENT_RUN_DIR;
  command.add_option("--run-dir", *run_dir, "the agent's run directory; default: " SLUICE_HOST_AGENT_RUN_DIR)
      ->envname("SLUICE_RUN_DIR");
}

void Fail(int status, const std::string& text) {
  std::fprintf(stderr, "sluice: %s\n", text.c_str());
  throw CLI::RuntimeError(status);
}

std::unique_ptr<v1::Agent::Stub> NeedAgent(const std::string& run_dir) {
  const std::string socket = SocketIn(run_dir);
  if (AgentListens(socket)) return Connect(socket);
  Fail(1, "no agent answers at " + socket + (errno == EACCES ? ": permission denied" : "") +
              "; start sluice-agent, or give its folder by --run-dir");
}

void FailCall(const grpc::Status& status) {
  const bool caller =
      status.error_code() == grpc::StatusCode::INVALID_ARGUMENT || status.error_code() == grpc::StatusCode::NOT_FOUND;
  Fail(caller ? 2 : 1, status.error_message());
}

}  // namespace sluice::cli
