// The API server's address, and the credentials for it.
#ifndef SLUICE_KUBE_CONFIG_H_
#define SLUICE_KUBE_CONFIG_H_

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <string_view>

namespace sluice::kube {

// Files are read again when their content may have changed: kubelet renews the token, and a cluster's CA rotates.
struct ClientConfig {
  std::string server;      // https://10.96.0.1:443; unix:/path/of/a/socket for a proxy; http:// for tests
  std::string ca_file;     // PEM; empty: the system's CAs
  std::string token_file;  // empty: no token
  std::string cert_file;   // client certificate; empty: none
  std::string key_file;
  std::string name_space;      // of the pod, or of the kubeconfig's context
  std::shared_ptr<void> kept;  // in-memory files that live as long as the configuration
};

// Inside a pod, from the service account's volume. kUnavailable: not in a pod. `root` is another file system root, for
// tests.
absl::StatusOr<ClientConfig> InCluster(const std::string& root = "");

// The current context of a kubeconfig file: certificate or token, in files or inline. No exec plugins, because daemons
// use none.
absl::StatusOr<ClientConfig> FromKubeconfig(const std::string& path);

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_CONFIG_H_
