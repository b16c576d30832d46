// `kubectl proxy` as a child process: one way to the API server for thousands of requests, with the user's kubeconfig,
// context and login plugin. It listens on a Unix socket in a folder that no other user may enter.
#ifndef SLUICE_CLI_KUBECTL_PROXY_H_
#define SLUICE_CLI_KUBECTL_PROXY_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "cli/kubectl.h"

namespace sluice::cli {

// One at a time in a process: a signal that ends this process also ends the child and removes the socket.
class KubectlProxy {
 public:
  // nullptr: it does not start to serve, for example because this kubectl has no such subcommand.
  static std::unique_ptr<KubectlProxy> Start(const Kubectl& kubectl);
  ~KubectlProxy();
  KubectlProxy(const KubectlProxy&) = delete;
  KubectlProxy& operator=(const KubectlProxy&) = delete;

  // For kube::ClientConfig::server.
  std::string server() const { return "unix:" + socket_; }

 private:
  KubectlProxy() = default;

  pid_t pid_ = -1;
  int out_ = -1;
  std::string folder_, socket_;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_KUBECTL_PROXY_H_
