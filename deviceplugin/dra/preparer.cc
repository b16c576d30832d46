#include "deviceplugin/dra/preparer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "common/log/log.h"
#include "deviceplugin/dra/resource_slice.h"
#include "deviceplugin/host/hook_library.h"
#include "deviceplugin/host/pre_start.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin::dra {
namespace {

std::string Name(const ClaimRef& ref) { return StrCat(ref.name_space, "/", ref.name); }

// Whether both are the same allocation. Units follow from the memory and the card's reserve, which may change.
bool IsSame(ClaimShare now, const ClaimShare& before) {
  for (size_t i = 0; i < now.devices.size() && i < before.devices.size(); ++i)
    now.devices[i].share_id = before.devices[i].share_id;  // not in the files
  return now.claim == before.claim && now.devices == before.devices && now.settings == before.settings &&
         now.preload == before.preload;
}

}  // namespace

class Preparer::Turn {
 public:
  Turn(Preparer* preparer, std::string uid) : preparer_(preparer), uid_(std::move(uid)) {
    MutexLock lock(preparer_->mutex_);
    while (!preparer_->busy_.insert(uid_).second) preparer_->turn_ended_.Wait(preparer_->mutex_);
  }
  ~Turn() {
    MutexLock lock(preparer_->mutex_);
    preparer_->busy_.erase(uid_);
    preparer_->turn_ended_.NotifyAll();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Preparer* const preparer_;
  const std::string uid_;
};

absl::Status Preparer::Restore() {
  auto listed = options_.store.List();
  if (!listed.ok()) return listed.status();
  for (const std::string& uid : listed->unreadable) {
    const absl::Status s = options_.store.Remove(uid);
    Log(LogLevel::kWarn, "a claim's folder was incomplete and is removed", {{"claim", uid}, {"result", s.ToString()}});
  }
  for (PreparedClaim& claim : listed->claims) {
    const auto made = options_.store.RestoreSpec(claim);
    if (!made.ok()) {
      Log(LogLevel::kError, "claim's CDI spec", {{"why", std::string(made.status().message())}});
    } else if (*made) {
      Log(LogLevel::kWarn, "claim's CDI spec restored", {{"claim", Name(claim.share.claim)}});
    }
    MutexLock lock(mutex_);
    const std::string uid = claim.share.claim.uid;
    claims_.insert_or_assign(uid, std::move(claim));
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedClaim> Preparer::Prepare(const ClaimRef& ref, Clock::time_point until) {
  if (!IsClaimUid(ref.uid)) {
    return Refusal("malformed",
                   StrCat("'", ref.uid.substr(0, 64), "' is no claim's uid; accepted: letters, digits, '-'"));
  }
  Turn turn(this, ref.uid);
  return PrepareInTurn(ref, until);
}

absl::StatusOr<PreparedClaim> Preparer::PrepareInTurn(const ClaimRef& ref, Clock::time_point until) {
  const auto object = options_.get_claim(ref);
  if (absl::IsNotFound(object.status())) {
    return Refusal("claim-gone", StrCat("there is no ResourceClaim ", Name(ref)));
  }
  if (!object.ok()) {
    return Refusal("api", StrCat("ResourceClaim ", Name(ref), " cannot be read: ", object.status().message()));
  }
  std::optional<PreparedClaim> old;
  {
    MutexLock lock(mutex_);
    if (const auto it = claims_.find(ref.uid); it != claims_.end()) old = it->second;
  }
  const auto snapshot = options_.snapshots->Latest();
  if (old) {
    const auto share = ReadClaim(*object, ref, options_.pool, snapshot->inventory, options_.reserve, true);
    // Running containers use the files. That a card cannot be read for a while is no reason to remove them.
    if (!share.ok()) return share.status();
    if (IsSame(*share, old->share) && CheckHookLibrary(old->lib_dir).ok()) {
      if (auto s = options_.store.Write(*old); !s.ok()) return Refusal("storage", std::string(s.message()));
      if (auto s = AwaitAgent(*old, until); !s.ok()) return s;
      old->share.devices = share->devices;
      return *old;
    }
    // The claim was allocated anew without a call in between, or its library is gone.
    Log(LogLevel::kWarn, "a claim is prepared anew", {{"claim", Name(ref)}});
    if (auto s = options_.store.Remove(ref.uid); !s.ok()) return Refusal("storage", std::string(s.message()));
    MutexLock lock(mutex_);
    claims_.erase(ref.uid);
  }
  auto share = ReadClaim(*object, ref, options_.pool, snapshot->inventory, options_.reserve);
  if (!share.ok()) return share.status();
  PreparedClaim claim{*std::move(share), snapshot->access, snapshot->lib_dir, std::chrono::system_clock::now()};
  if (auto s = CheckAccess(claim, *snapshot); !s.ok()) return s;
  if (auto s = Enter(claim, snapshot->inventory); !s.ok()) return s;
  if (auto s = options_.store.Write(claim); !s.ok()) {
    MutexLock lock(mutex_);
    claims_.erase(ref.uid);
    return Refusal("storage", StrCat("the claim's folder could not be made: ", s.message()));
  }
  Log(LogLevel::kInfo, "claim prepared",
      {{"claim", Name(ref)}, {"allocation", ClaimId(ref.uid)}, {"gpu", claim.share.devices.front().uuid}});
  // The folder stays if the agent is late: kubelet asks again.
  if (auto s = AwaitAgent(claim, until); !s.ok()) return s;
  return claim;
}

absl::Status Preparer::CheckAccess(const PreparedClaim& claim, const NodeSnapshot& snapshot) const {
  if (!snapshot.lib_problem.empty()) return Refusal("library", snapshot.lib_problem);
  for (const ClaimDevice& device : claim.share.devices) {
    for (const std::string& name : CdiNames(claim, device)) {
      if (name.starts_with(kClaimCdiKind) || snapshot.cdi_names.contains(name)) continue;
      return Refusal("cdi", StrCat("no CDI spec on this node names ", name, " (driver access ", ToString(claim.access),
                                   "; fix: nvidia-ctk cdi generate, or set driverAccess)"));
    }
  }
  return absl::OkStatus();
}

absl::Status Preparer::AwaitAgent(const PreparedClaim& claim, Clock::time_point until) const {
  if (claim.share.cards.empty()) return absl::OkStatus();  // for monitoring: not held to a budget
  // The agent needs some milliseconds at most, unless it is down.
  constexpr std::chrono::microseconds kStep(250), kMaxStep(100'000);
  constexpr std::chrono::milliseconds kConstantStepPeriod(30);
  const auto began = Clock::now();
  auto pause = kStep;
  while (true) {
    absl::Status status = CheckStartRequirements({options_.store.RunDir(claim.share.claim.uid), claim.lib_dir});
    if (!absl::IsUnavailable(status)) return status;
    if (Clock::now() + pause > until) return Refusal("agent", std::string(status.message()));
    std::this_thread::sleep_for(pause);
    if (Clock::now() > began + kConstantStepPeriod) pause = std::min(pause * 2, kMaxStep);
  }
}

std::string Preparer::Excess(const PreparedClaim& claim, const Inventory& inventory,
                             const std::map<std::string, int>& held) const {
  for (const GrantedCard& card : claim.share.cards) {
    const Card* known = inventory.Find(card.uuid);
    if (known == nullptr) continue;
    const auto plugin = held.find(card.uuid);
    const int units = plugin == held.end() ? 0 : plugin->second;
    const uint64_t capacity = ClaimableMemory(*known, options_.reserve, units);
    uint64_t memory = 0;
    auto compute = static_cast<uint32_t>(units);
    std::string holders;
    const auto add = [&](const ClaimDevice& device) {
      memory += device.memory == 0 ? capacity : device.memory;
      compute += device.compute;
    };
    for (const auto& [uid, other] : claims_) {
      if (uid == claim.share.claim.uid) continue;
      bool holds = false;
      for (const ClaimDevice& device : other.share.devices) {
        if (device.admin || device.uuid != card.uuid) continue;
        add(device);
        holds = true;
      }
      if (holds && holders.size() < 200) holders += (holders.empty() ? "" : ", ") + Name(other.share.claim);
    }
    if (holders.empty() && units == 0) continue;  // the scheduler's word alone
    const uint64_t held_memory = memory;
    const uint32_t held_compute = compute;
    for (const ClaimDevice& device : claim.share.devices) {
      if (!device.admin && device.uuid == card.uuid) add(device);
    }
    if (memory <= capacity && compute <= SLUICE_UNITS_PER_GPU) continue;
    return StrCat("GPU ", card.uuid, " has ", settings::FormatQuantity(capacity), " for claims, and other claims hold ",
                  held_memory == 0 ? "nothing" : settings::FormatQuantity(held_memory), " and ", held_compute,
                  " percent of its time: ", holders,
                  units == 0 ? "" : StrCat(holders.empty() ? "" : ", ", "containers of the device plugin"));
  }
  return "";
}

absl::Status Preparer::Enter(const PreparedClaim& claim, const Inventory& inventory) {
  const std::map<std::string, int> held =
      options_.held_units ? options_.held_units->Now() : std::map<std::string, int>();
  for (int attempt = 0;; ++attempt) {
    std::vector<ClaimRef> holders;
    std::string excess;
    {
      MutexLock lock(mutex_);
      excess = Excess(claim, inventory, held);
      if (excess.empty()) {
        claims_.insert_or_assign(claim.share.claim.uid, claim);
        return absl::OkStatus();
      }
      for (const auto& [uid, other] : claims_) holders.push_back(other.share.claim);
    }
    // The scheduler knows no such claims, so that some of them have ended without a word from kubelet.
    if (attempt > 0 || CollectAmong(holders, claim.share.claim.uid) == 0) return Refusal("claim-excess", excess);
  }
}

absl::Status Preparer::Unprepare(const ClaimRef& ref) {
  if (!IsClaimUid(ref.uid)) return absl::OkStatus();  // none was ever prepared
  Turn turn(this, ref.uid);
  if (auto s = options_.store.Remove(ref.uid); !s.ok()) return Refusal("storage", std::string(s.message()));
  MutexLock lock(mutex_);
  if (claims_.erase(ref.uid) > 0) Log(LogLevel::kInfo, "claim given back", {{"claim", Name(ref)}});
  return absl::OkStatus();
}

int Preparer::Collect() {
  std::vector<ClaimRef> refs;
  for (const PreparedClaim& claim : Prepared()) refs.push_back(claim.share.claim);
  return CollectAmong(refs, "");
}

int Preparer::CollectAmong(const std::vector<ClaimRef>& refs, const std::string& busy_here) {
  int collected = 0;
  for (const ClaimRef& ref : refs) {
    if (ref.uid == busy_here) continue;
    {
      // A claim that another call works on is no forgotten one. To wait for that call could be to wait for each other.
      MutexLock lock(mutex_);
      if (!claims_.contains(ref.uid) || !busy_.insert(ref.uid).second) continue;
    }
    if (IsGone(ref)) {
      const absl::Status s = options_.store.Remove(ref.uid);
      Log(LogLevel::kWarn, "a claim that the API server no longer has is given back",
          {{"claim", Name(ref)}, {"result", s.ToString()}});
      MutexLock lock(mutex_);
      claims_.erase(ref.uid);
      ++collected;
    }
    MutexLock lock(mutex_);
    busy_.erase(ref.uid);
    turn_ended_.NotifyAll();
  }
  return collected;
}

bool Preparer::IsGone(const ClaimRef& ref) const {
  const auto object = options_.get_claim(ref);
  if (!object.ok()) return absl::IsNotFound(object.status());
  const auto inventory = options_.snapshots->Latest()->inventory;
  const auto share = ReadClaim(*object, ref, options_.pool, inventory, options_.reserve, true);
  const std::string reason = share.ok() ? "" : RefusalReason(share.status());
  return reason == "claim-gone" || reason == "claim-unallocated";
}

std::vector<PreparedClaim> Preparer::Prepared() const {
  MutexLock lock(mutex_);
  std::vector<PreparedClaim> out;
  out.reserve(claims_.size());
  for (const auto& [uid, claim] : claims_) out.push_back(claim);
  return out;
}

}  // namespace sluice::deviceplugin::dra
