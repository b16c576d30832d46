// The extender's view of Dynamic Resource Allocation: cards of ResourceSlices, and claims that hold parts of them.
// kube-scheduler filters nodes and chooses cards; the extender only says which node packs best.
#ifndef SLUICE_SCHEDULER_EXTENDER_CLAIM_STATE_H_
#define SLUICE_SCHEDULER_EXTENDER_CLAIM_STATE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/mutex.h"
#include "scheduler/extender/claim_facts.h"
#include "scheduler/extender/cluster_state.h"

namespace sluice::scheduler {

struct ClaimFigures {
  int cards = 0;             // offered
  double free_cards = 0;     // free units / 100
  int allocated_claims = 0;  // that hold a card
};

// Thread-safe. Takes the lock of ClusterState under its own.
class ClaimState {
 public:
  using Clock = std::chrono::steady_clock;
  ClaimState(PolicyRefresher& policies, ClusterState& hosts, std::function<Clock::time_point()> now = Clock::now)
      : policies_(policies), hosts_(hosts), now_(std::move(now)) {}

  // From the watches. Keep...: the list is complete. Its objects have been put; all others are gone.
  void PutSlice(SliceFacts slice);
  void RemoveSlice(const std::string& name);
  void KeepSlices(const std::unordered_set<std::string>& names);
  void PutClaim(ClaimFacts claim);
  // Of a claim that was read because the watch had not shown it. Facts that the watch has shown since are newer, and
  // stay.
  void PutUnknown(ClaimFacts claim);
  void RemoveClaim(const std::string& key);
  void KeepClaims(const std::unordered_set<std::string>& keys);
  void PutClass(ClassFacts device_class);
  void RemoveClass(const std::string& name);
  void KeepClasses(const std::unordered_set<std::string>& names);

  // Keys of the pod's claims that no watch has shown yet.
  std::vector<std::string> UnknownOf(const PodClaims& claims) const;
  // Scores of 0..10 in the order of `nodes`, as ClusterState::Prioritize. Empty: no opinion. The pod takes no card of
  // sluice's driver, or its cards are chosen already. A claim prefers another driver's alternative. Or the watches have
  // not shown all yet. Of alternatives a node is rated by the first that fits there, as the allocator takes it.
  // The pod is then expected on the best node, so that pods that come fast are not all told the same one. That ends
  // when the watch shows its claims allocated, when the scheduler asks about it again, or after some seconds.
  std::vector<int> Prioritize(const PodFacts& pod, const PodClaims& claims, std::span<const std::string_view> nodes);

  // As ClusterState::RateHost, for nodes that offer GPUs through ResourceSlices; the others keep their entries of
  // `raw`.
  void RateHost(const PodFacts& pod, std::span<const std::string_view> nodes, std::vector<double>& raw);

  ClaimFigures Figures();

 private:
  struct Slice {
    std::string name;
    std::int64_t generation = 0;
    std::vector<ClaimCard> cards;
  };
  struct CardUsage {
    TextHash device = 0;
    std::int64_t memory = 0, compute = 0;
    int claims = 0;
  };
  struct Pool {
    std::vector<Slice> slices;    // by name, as the allocator goes through them
    std::vector<CardUsage> used;  // cards that claims hold; also of cards that no slice offers any more
    Request expected;             // CPU and memory of pods that are expected here
    // Made on demand, dropped on every change: the cards' room, and their worth to the policy of that number.
    std::vector<ClaimCard> merged;  // only where several slices have cards
    std::vector<CardRoom> rooms;
    Node node;
    NodeWorth worth;
    std::uint64_t worth_policy_number = 0;
    bool is_current = false;

    std::span<const ClaimCard> Cards() const { return merged.empty() ? NewestCards() : std::span(merged); }
    std::span<const ClaimCard> NewestCards() const;
  };
  struct Claim {
    bool is_allocated = false;
    std::string pod;
    std::vector<HeldCard> held;
    std::shared_ptr<const RequestedClaim> requested;
  };
  struct ExpectedPod {
    std::string node;
    Request host;
    std::vector<std::pair<std::string, HeldCard>> held;  // by the claim's key; "" for extended resources
    Clock::time_point at;
  };
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  void PutSliceLocked(SliceFacts slice) SLUICE_REQUIRES(mutex_);
  void RemoveSliceLocked(const std::string& name) SLUICE_REQUIRES(mutex_);
  void PutLocked(ClaimFacts claim) SLUICE_REQUIRES(mutex_);
  void RemoveClaimLocked(const std::string& key) SLUICE_REQUIRES(mutex_);
  void Count(const HeldCard& held, int sign) SLUICE_REQUIRES(mutex_);
  void EraseIfUnused(const std::string& node) SLUICE_REQUIRES(mutex_);
  static void Refresh(Pool& pool);
  void RefreshWorth(Pool& pool, const HostRoom& host) SLUICE_REQUIRES(mutex_);
  bool IsOurs(const std::string& device_class) const SLUICE_REQUIRES(mutex_);
  // The pod's claims that have no card yet, with their keys. nullopt: no opinion.
  struct OpenClaims {
    std::vector<CardsClaim> claims;
    std::vector<std::string> keys;
  };
  std::optional<OpenClaims> OpenClaimsOf(const PodClaims& claims) const SLUICE_REQUIRES(mutex_);
  void Expect(const PodFacts& pod, const std::string& node, const OpenClaims& open, const std::vector<TakenCard>& taken)
      SLUICE_REQUIRES(mutex_);
  void Forget(const std::string& pod) SLUICE_REQUIRES(mutex_);
  void ForgetClaim(const ClaimFacts& claim) SLUICE_REQUIRES(mutex_);
  void ForgetOld() SLUICE_REQUIRES(mutex_);
  // Adds an allocated claim to the mix of requests.
  void Record(const std::string& pod, const std::vector<HeldCard>& held) SLUICE_REQUIRES(mutex_);
  void RefreshPolicy() SLUICE_REQUIRES(mutex_);

  PolicyRefresher& policies_;
  ClusterState& hosts_;
  const std::function<Clock::time_point()> now_;
  mutable Mutex mutex_;
  std::unordered_map<std::string, Pool, Hash, std::equal_to<>> pools_ SLUICE_GUARDED_BY(mutex_);  // by node
  std::unordered_map<std::string, std::string> node_by_slice_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Claim> claims_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, ClassFacts> classes_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, ExpectedPod> expected_ SLUICE_GUARDED_BY(mutex_);  // by the pod's uid
  std::shared_ptr<const PlacementPolicy> policy_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t policy_number_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool slices_synced_ SLUICE_GUARDED_BY(mutex_) = false;
  bool claims_synced_ SLUICE_GUARDED_BY(mutex_) = false;
  bool classes_synced_ SLUICE_GUARDED_BY(mutex_) = false;
  bool recorded_ SLUICE_GUARDED_BY(mutex_) = false;  // the claims of the first list
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_CLAIM_STATE_H_
