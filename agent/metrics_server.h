// The node's status over HTTP or HTTPS, where the configuration names an address: Prometheus metrics, read-only JSON,
// and the answer for kubelet's probes.
#ifndef SLUICE_AGENT_METRICS_SERVER_H_
#define SLUICE_AGENT_METRICS_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "agent/status.h"

namespace sluice::agent {

// Whether the bearer of a token may read a path.
struct Access {
  enum class Verdict { kAllowed, kUnknown, kForbidden, kBusy } verdict = Verdict::kUnknown;
  std::string reason;  // for the client, unless it is allowed
};

struct MetricsOptions {
  std::string listen;  // ADDR:PORT; the address is numeric
  std::string node;    // for the label
  // The status; nullptr: the loop does not answer. The same one as before needs no new page. Called on server threads,
  // and may wait.
  std::function<std::shared_ptr<const NodeStatus>()> now;
  std::function<bool()> alive;  // whether the loop answers; as `now`
  // Empty: plain HTTP without a token, and `hide` is called on each status. Else HTTPS. Called on server threads.
  std::function<Access(std::string_view token, const std::string& path)> authorize;
  std::function<void(NodeStatus*)> hide;
  std::string certificate, key;  // files; empty: a certificate of its own, renewed in time
};

class MetricsServer {
 public:
  explicit MetricsServer(MetricsOptions options);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  // False with a sentence.
  bool Start(std::string* error);
  int port() const;  // the one that was taken, where the address has 0
  // Reads changed certificate files, or renews the own certificate. Call it every some seconds. A sentence for the log
  // after a change or a new error; else empty.
  std::string Refresh();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_METRICS_SERVER_H_
