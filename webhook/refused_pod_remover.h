// Removes pods that a node's device plugin refused. They stay as Failed for ever, one for each attempt of a ReplicaSet.
#ifndef SLUICE_WEBHOOK_REFUSED_POD_REMOVER_H_
#define SLUICE_WEBHOOK_REFUSED_POD_REMOVER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/mutex.h"
#include "kube/lease.h"
#include "kube/watcher.h"
#include "webhook/decision/config.h"

namespace sluice::webhook {

// Whether the device plugin refused this pod of a ReplicaSet: it is Failed with UnexpectedAdmissionError and the
// plugin's message, and its deletion has not begun. Pure.
bool IsRefusedPod(const nlohmann::json& pod);

// Removes nothing unless this replica holds the Lease. Poll belongs to one thread.
class RefusedPodRemover {
 public:
  // Calls `removed` with "namespace/name: reason" for each removed pod. `identity` names this replica in the Lease.
  RefusedPodRemover(kube::ClientConfig config, kube::Client& client, RemoveRefused settings, std::string identity,
                    std::function<void(const std::string&)> removed);
  ~RefusedPodRemover();  // releases the Lease

  // Renews the Lease and removes pods that are due. The caller calls it about once a second. Fails if the API server
  // does.
  absl::Status Poll(std::chrono::steady_clock::time_point now);
  bool is_leader() const { return watcher_ != nullptr; }

 private:
  struct Pod {
    std::string path, name, uid, reason;
    std::chrono::steady_clock::time_point first_seen;
  };
  void Add(const nlohmann::json& pod);
  void StartWatching();
  absl::Status RemoveDuePods(std::chrono::steady_clock::time_point now);

  const kube::ClientConfig config_;
  kube::Client& client_;
  const RemoveRefused settings_;
  const std::function<void(const std::string&)> removed_;
  kube::Lease lease_;
  std::chrono::steady_clock::time_point next_lease_poll_{};
  Mutex mutex_;
  std::map<std::string, Pod> pods_ SLUICE_GUARDED_BY(mutex_);  // by uid; the watcher's thread adds to it
  std::unique_ptr<kube::Watcher> watcher_;  // while this replica leads; last, because its functions use the others
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_REFUSED_POD_REMOVER_H_
