// The gRPC service of proto/agent.proto on the run directory's socket. gRPC's threads only carry: everything is
// answered on the loop's thread. gRPC's headers stay in service.cc.
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

  // Again after Shutdown(), too.
  bool Start(const std::string& socket_path, std::string* error);
  // Whether the socket is still under its name.
  bool InPlace(const std::string& socket_path) const;
  // Ends all calls; the loop must still run meanwhile. Any thread but the loop's.
  void Shutdown();
  // Why there is no GPU, for those who ask for one.
  void SetCardError(const std::string& error);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_SERVICE_H_
