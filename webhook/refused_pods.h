// Removes the pods that a node's device plugin refused: they stay as Failed for ever, one for each try of a ReplicaSet.
// Only the holder of a Lease does so.
#ifndef SLUICE_WEBHOOK_REFUSED_PODS_H_
#define SLUICE_WEBHOOK_REFUSED_PODS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kube/lease.h"
#include "kube/watcher.h"
#include "webhook/decision/config.h"

namespace sluice::webhook {

// Whether this pod is one of those: a ReplicaSet's, Failed by UnexpectedAdmissionError with our plugin's words, and not
// being deleted already. Pure.
bool IsRefused(const nlohmann::json& pod);

class RefusedPods {
 public:
  // `removed` is told of each pod: "namespace/name: why". `identity` is this replica's.
  RefusedPods(kube::ClientConfig config, kube::Client& client, RemoveRefused settings, std::string identity,
              std::function<void(const std::string&)> removed);
  ~RefusedPods();  // gives the Lease up

  // One look, about once a second, always by the same thread. Fails as the API server does.
  absl::Status Tick(std::chrono::steady_clock::time_point now);
  bool leads() const { return watcher_ != nullptr; }

 private:
  struct Pod {
    std::string path, name, uid, why;
    std::chrono::steady_clock::time_point seen;
  };
  void Put(const nlohmann::json& pod);
  void Lead();
  absl::Status RemoveOld(std::chrono::steady_clock::time_point now);

  const kube::ClientConfig config_;
  kube::Client& client_;
  const RemoveRefused settings_;
  const std::function<void(const std::string&)> removed_;
  kube::Lease lease_;
  std::chrono::steady_clock::time_point next_look_{};
  std::mutex mutex_;                        // pods_: the watcher's thread adds
  std::map<std::string, Pod> pods_;         // by uid
  std::unique_ptr<kube::Watcher> watcher_;  // while we lead; last, since its functions use the others
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_REFUSED_PODS_H_
