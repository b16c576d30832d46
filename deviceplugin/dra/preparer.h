// Prepares claims on this node, and gives them back. Keeps the files of claim_store.h in memory too, and no other
// account: kubelet names the claims in use, the API server the allocated ones.
#ifndef SLUICE_DEVICEPLUGIN_DRA_PREPARER_H_
#define SLUICE_DEVICEPLUGIN_DRA_PREPARER_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "deviceplugin/dra/claim_store.h"
#include "deviceplugin/dra/held_units.h"
#include "deviceplugin/node_snapshot.h"

namespace sluice::deviceplugin::dra {

struct PreparerOptions {
  std::shared_ptr<SnapshotPublisher> snapshots;  // has one
  ClaimStore store;
  std::string pool;
  uint64_t reserve = 0;  // bytes of each card that no claim gets, beside the driver's own
  // The object from the API server; NOT_FOUND: there is none.
  std::function<absl::StatusOr<nlohmann::json>(const ClaimRef&)> get_claim;
  std::shared_ptr<HeldUnits> held_units = nullptr;  // of the device plugin's containers; nullptr: none
};

// Thread-safe. Calls for one claim follow each other.
class Preparer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Preparer(PreparerOptions options) : options_(std::move(options)) {}

  // Reads the checkpoint and makes missing specs again. Folders that are damaged are removed: kubelet asks for their
  // claims again before it starts a container. Call it once, before the others.
  absl::Status Restore();

  // Idempotent. Waits until the agent serves the allocation, at most to `until`. The error holds a Refusal's reason.
  absl::StatusOr<PreparedClaim> Prepare(const ClaimRef& ref, Clock::time_point until);
  // OK for a claim that is not prepared.
  absl::Status Unprepare(const ClaimRef& ref);

  // Gives back claims that the API server no longer has, or has allocated elsewhere: kubelet's state may be lost. Does
  // nothing with a claim about which the API server does not answer. Returns the number of claims given back.
  int Collect();

  std::vector<PreparedClaim> Prepared() const;

 private:
  // Waits until no other call works on the claim.
  class Turn;

  absl::StatusOr<PreparedClaim> PrepareInTurn(const ClaimRef& ref, Clock::time_point until);
  absl::Status CheckAccess(const PreparedClaim& claim, const NodeSnapshot& snapshot) const;
  absl::Status AwaitAgent(const PreparedClaim& claim, Clock::time_point until) const;
  absl::Status Enter(const PreparedClaim& claim, const Inventory& inventory);
  // Empty, or a sentence about the claims that hold the units that `claim` needs.
  std::string Excess(const PreparedClaim& claim, const Inventory& inventory,
                     const std::map<std::string, int>& held) const SLUICE_REQUIRES(mutex_);
  // Whether the API server says that the claim is not allocated any more.
  bool IsGone(const ClaimRef& ref) const;
  int CollectAmong(const std::vector<ClaimRef>& refs, const std::string& busy_here);

  const PreparerOptions options_;
  mutable Mutex mutex_;
  Condition turn_ended_;
  std::map<std::string, PreparedClaim> claims_ SLUICE_GUARDED_BY(mutex_);  // by uid
  std::set<std::string> busy_ SLUICE_GUARDED_BY(mutex_);                   // uids
};

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_PREPARER_H_
