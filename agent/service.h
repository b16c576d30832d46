// The gRPC service of proto/agent.proto on the run directory's socket. gRPC's threads only pass calls on: the loop's
// thread answers them. gRPC's headers stay in service.cc. Used by the loop's thread, except Shutdown().
#ifndef SLUICE_AGENT_SERVICE_H_
#define SLUICE_AGENT_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "agent/event_loop.h"
#include "agent/node.h"
#include "agent/server.h"

namespace sluice::agent {

class Service {
 public:
  Service(EventLoop* loop, Node* node, Server* server);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Also after Shutdown(). False with a sentence.
  bool Start(const std::string& socket_path, std::string* error);
  // Whether the socket is still under its name.
  bool HasSocket(const std::string& socket_path) const;
  // Ends all calls, while the loop runs on. Any thread but the loop's.
  void Shutdown();
  // The reason why there is no GPU, for callers that need one.
  void SetCardError(const std::string& error);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_SERVICE_H_
