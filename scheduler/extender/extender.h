// The scheduler extender's three calls (k8s.io/kube-scheduler/extender/v1): JSON in, JSON out, no sockets.
#ifndef SLUICE_SCHEDULER_EXTENDER_EXTENDER_H_
#define SLUICE_SCHEDULER_EXTENDER_EXTENDER_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "scheduler/extender/claim_state.h"
#include "scheduler/extender/cluster_state.h"
#include "scheduler/extender/extender_args.h"
#include "scheduler/extender/pod_facts.h"

namespace sluice::scheduler {

// Writes Bindings, and reads objects that the watches have not shown yet.
class Binder {
 public:
  virtual ~Binder() = default;
  // kUnavailable and kDeadlineExceeded: the pod may or may not be bound. Every other error: it is not bound.
  virtual absl::Status Bind(const PodFacts& pod, const std::string& node,
                            const std::map<std::string, std::string>& annotations) = 0;
  // Reads a pod that the watch has not shown yet. NotFound: it does not exist.
  virtual absl::StatusOr<PodFacts> Get(const std::string& name_space, const std::string& name) = 0;
  // The same for a ResourceClaim. `key`: namespace/name.
  virtual absl::StatusOr<ClaimFacts> GetClaim(const std::string& key) = 0;
  // Sets an annotation of the pod; an empty value takes it away. Error: it is as before, or not known.
  virtual absl::Status Annotate(const PodFacts& pod, const std::string& annotation, const std::string& value) = 0;
};

struct Reply {
  int status = 200;
  std::string body;
};

// Thread-safe.
class Extender {
 public:
  enum Call { kFilter, kPrioritize, kPrioritizeAny, kBind, kVolcanoPredicate, kVolcanoAllocate, kCalls };

  // Without `claims` no node is scored for pods by their claims. `other_pods`: nodes are scored for pods without GPUs.
  Extender(ClusterState& cluster, Binder& binder, ClaimState* claims = nullptr, bool other_pods = false)
      : cluster_(cluster), binder_(binder), claims_(claims), other_pods_(other_pods) {}

  Reply Filter(const std::string& body);
  Reply Prioritize(const std::string& body);
  // Scores for pods with ResourceClaims, and for pods without GPUs if these are to be scored. An empty list for all
  // others: the scheduler asks about every pod.
  Reply PrioritizeAny(const std::string& body);
  Reply Bind(const std::string& body);
  // In Prometheus' text format.
  std::string Metrics() const;

  // For the calls of other schedulers (volcano.h).
  void Count(Call call, bool refused);
  // True: nothing is reserved for the pod (any more). False: it is bound, or may be.
  bool MayBePlaced(const PodFacts& pod);
  // The pod as the watch or else the API server shows it. Error: there is none with this uid.
  absl::StatusOr<PodFacts> KnownPod(const std::string& name_space, const std::string& name, const std::string& uid);
  ClusterState& cluster() { return cluster_; }
  Binder& binder() { return binder_; }

 private:
  std::vector<int> ScoresForAny(const ExtenderArgs& args);
  absl::Status BindPod(const std::string& name_space, const std::string& name, const std::string& uid,
                       const std::string& node);

  ClusterState& cluster_;
  Binder& binder_;
  ClaimState* const claims_;
  const bool other_pods_;
  mutable Mutex counts_mutex_;
  std::uint64_t calls_[kCalls] SLUICE_GUARDED_BY(counts_mutex_) = {};
  std::uint64_t refusals_[kCalls] SLUICE_GUARDED_BY(counts_mutex_) = {};
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_EXTENDER_H_
