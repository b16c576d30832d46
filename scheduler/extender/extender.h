// The scheduler extender's three calls: JSON in, JSON out (k8s.io/kube-scheduler/extender/v1), no sockets.
#ifndef SLUICE_SCHEDULER_EXTENDER_EXTENDER_H_
#define SLUICE_SCHEDULER_EXTENDER_EXTENDER_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "scheduler/extender/cluster_state.h"
#include "scheduler/extender/pod_facts.h"

namespace sluice::scheduler {

// Writes the Binding. The one thing that the extender asks of the API server.
class Binder {
 public:
  virtual ~Binder() = default;
  // kUnavailable and kDeadlineExceeded: it is not known whether the pod is bound now. Every other error: it is not.
  virtual absl::Status Bind(const PodFacts& pod, const std::string& node,
                            const std::map<std::string, std::string>& annotations) = 0;
  // A pod that the watch has not shown yet. NotFound: there is none.
  virtual absl::StatusOr<PodFacts> Get(const std::string& name_space, const std::string& name) = 0;
};

struct Reply {
  int status = 200;
  std::string body;
};

// Thread-safe.
class Extender {
 public:
  Extender(ClusterState& cluster, Binder& binder) : cluster_(cluster), binder_(binder) {}

  Reply Filter(const std::string& body);
  Reply Prioritize(const std::string& body);
  Reply Bind(const std::string& body);
  // Prometheus text.
  std::string Metrics() const;

 private:
  enum Call { kFilter, kPrioritize, kBind, kCalls };
  void Count(Call call, bool refused);
  // Nothing is reserved for the pod (any more). False: it is bound, or may be.
  bool MayBePlaced(const PodFacts& pod);
  absl::Status BindPod(const std::string& name_space, const std::string& name, const std::string& uid,
                       const std::string& node);

  ClusterState& cluster_;
  Binder& binder_;
  mutable std::mutex counts_mutex_;
  std::uint64_t calls_[kCalls] = {}, refusals_[kCalls] = {};
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_EXTENDER_H_
