#include "scheduler/extender/claim_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "scheduler/extender/node_scores.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

// Longer than kube-scheduler needs to write an allocation, or to ask again after a failure.
constexpr std::chrono::seconds kMaxExpected{15};

constexpr char kClassResource[] = "deviceclass.resource.kubernetes.io/";

}  // namespace

void ClaimState::EraseIfUnused(const std::string& node) {
  const auto found = pools_.find(node);
  if (found != pools_.end() && found->second.slices.empty() && found->second.used.empty()) pools_.erase(found);
}

void ClaimState::PutSlice(SliceFacts slice) {
  const MutexLock lock(mutex_);
  PutSliceLocked(std::move(slice));
}

void ClaimState::PutSliceLocked(SliceFacts slice) {
  if (const auto old = node_by_slice_.find(slice.name); old != node_by_slice_.end() && old->second != slice.node) {
    RemoveSliceLocked(slice.name);
  }
  if (slice.name.empty() || slice.node.empty()) return;
  Pool& pool = pools_[slice.node];
  const auto at = std::ranges::lower_bound(pool.slices, slice.name, {}, &Slice::name);
  Slice put{slice.name, slice.generation, std::move(slice.cards)};
  if (at != pool.slices.end() && at->name == slice.name) {
    *at = std::move(put);
  } else {
    pool.slices.insert(at, std::move(put));
  }
  pool.is_current = false;
  node_by_slice_[slice.name] = slice.node;
}

void ClaimState::RemoveSlice(const std::string& name) {
  const MutexLock lock(mutex_);
  RemoveSliceLocked(name);
}

void ClaimState::RemoveSliceLocked(const std::string& name) {
  const auto found = node_by_slice_.find(name);
  if (found == node_by_slice_.end()) return;
  const std::string node = found->second;
  node_by_slice_.erase(found);
  Pool& pool = pools_[node];
  std::erase_if(pool.slices, [&](const Slice& slice) { return slice.name == name; });
  pool.is_current = false;
  EraseIfUnused(node);
}

void ClaimState::KeepSlices(const std::unordered_set<std::string>& names) {
  const MutexLock lock(mutex_);
  std::vector<std::string> gone;
  for (const auto& [name, node] : node_by_slice_) {
    if (!names.contains(name)) gone.push_back(name);
  }
  for (const std::string& name : gone) RemoveSliceLocked(name);
  slices_synced_ = true;
}

void ClaimState::Count(const HeldCard& held, int sign) {
  Pool& pool = pools_[held.pool];
  auto used = std::ranges::find(pool.used, held.device, &CardUsage::device);
  if (used == pool.used.end()) used = pool.used.insert(used, {.device = held.device});
  used->memory += sign * held.memory;
  used->compute += sign * held.compute;
  used->claims += sign;
  if (used->claims <= 0) pool.used.erase(used);
  pool.is_current = false;
}

void ClaimState::PutClaim(ClaimFacts claim) {
  const MutexLock lock(mutex_);
  PutLocked(std::move(claim));
}

void ClaimState::PutUnknown(ClaimFacts claim) {
  const MutexLock lock(mutex_);
  if (!claims_.contains(claim.key)) PutLocked(std::move(claim));
}

void ClaimState::PutLocked(ClaimFacts claim) {
  const auto old = claims_.find(claim.key);
  const bool is_new = claim.is_allocated && (old == claims_.end() || !old->second.is_allocated);
  if (claim.is_allocated) ForgetClaim(claim);
  if (old != claims_.end()) RemoveClaimLocked(claim.key);
  for (const HeldCard& held : claim.held) Count(held, +1);
  if (is_new && recorded_) Record(claim.pod, claim.held);
  claims_[claim.key] = {claim.is_allocated, std::move(claim.pod), std::move(claim.held), std::move(claim.requested)};
}

void ClaimState::RemoveClaim(const std::string& key) {
  const MutexLock lock(mutex_);
  RemoveClaimLocked(key);
}

void ClaimState::RemoveClaimLocked(const std::string& key) {
  const auto found = claims_.find(key);
  if (found == claims_.end()) return;
  for (const HeldCard& held : found->second.held) {
    Count(held, -1);
    EraseIfUnused(held.pool);
  }
  claims_.erase(found);
}

void ClaimState::KeepClaims(const std::unordered_set<std::string>& keys) {
  const MutexLock lock(mutex_);
  std::vector<std::string> gone;
  for (const auto& [key, claim] : claims_) {
    if (!keys.contains(key)) gone.push_back(key);
  }
  for (const std::string& key : gone) RemoveClaimLocked(key);
  claims_synced_ = true;
}

void ClaimState::PutClass(ClassFacts device_class) {
  const MutexLock lock(mutex_);
  classes_[device_class.name] = std::move(device_class);
}

void ClaimState::RemoveClass(const std::string& name) {
  const MutexLock lock(mutex_);
  classes_.erase(name);
}

void ClaimState::KeepClasses(const std::unordered_set<std::string>& names) {
  const MutexLock lock(mutex_);
  std::erase_if(classes_, [&](const auto& entry) { return !names.contains(entry.first); });
  classes_synced_ = true;
}

bool ClaimState::IsOurs(const std::string& device_class) const {
  const auto found = classes_.find(device_class);
  return found != classes_.end() && found->second.is_ours;
}

std::vector<std::string> ClaimState::UnknownOf(const PodClaims& claims) const {
  const MutexLock lock(mutex_);
  std::vector<std::string> unknown;
  if (!claims_synced_) return unknown;
  std::ranges::copy_if(claims.keys, std::back_inserter(unknown),
                       [&](const std::string& key) SLUICE_REQUIRES(mutex_) { return !claims_.contains(key); });
  return unknown;
}

std::optional<ClaimState::OpenClaims> ClaimState::OpenClaimsOf(const PodClaims& claims) const {
  OpenClaims open;
  for (const std::string& key : claims.keys) {
    const auto found = claims_.find(key);
    if (found == claims_.end()) return std::nullopt;
    if (found->second.is_allocated || !found->second.requested) continue;
    const RequestedClaim& requested = *found->second.requested;
    CardsClaim ours{.constraints = requested.cards.constraints};
    for (std::size_t i = 0; i < requested.classes.size(); ++i) {
      const std::vector<std::string>& classes = requested.classes[i];
      const auto foreign = std::ranges::find_if_not(
          classes, [this](const std::string& name) SLUICE_REQUIRES(mutex_) { return IsOurs(name); });
      const auto own = static_cast<std::size_t>(foreign - classes.begin());
      if (own == 0) {
        // Whether another driver's first alternative fits is not known here.
        if (std::ranges::any_of(classes,
                                [this](const std::string& name) SLUICE_REQUIRES(mutex_) { return IsOurs(name); })) {
          return std::nullopt;
        }
        continue;
      }
      CardsRequest request = requested.cards.requests[i];
      if (!request.alternatives.empty()) request.alternatives.resize(own);
      ours.requests.push_back(std::move(request));
    }
    if (ours.requests.empty()) continue;
    open.claims.push_back(std::move(ours));
    open.keys.push_back(key);
  }
  CardsClaim of_resources;
  for (const auto& [name, amount] : claims.other_resources) {
    const bool is_ours = std::ranges::any_of(classes_, [&](const auto& entry) {
      return entry.second.is_ours &&
             (name == entry.second.extended_resource ||
              (absl::StartsWith(name, kClassResource) && absl::StripPrefix(name, kClassResource) == entry.second.name));
    });
    if (is_ours) of_resources.requests.push_back({.name = name, .count = amount});
  }
  if (!of_resources.requests.empty()) {
    open.claims.push_back(std::move(of_resources));
    open.keys.emplace_back();
  }
  if (open.claims.empty()) return std::nullopt;
  return open;
}

std::span<const ClaimCard> ClaimState::Pool::NewestCards() const {
  const auto newest = std::ranges::max_element(slices, {}, &Slice::generation);
  return newest == slices.end() ? std::span<const ClaimCard>() : std::span(newest->cards);
}

void ClaimState::Refresh(Pool& pool) {
  if (pool.is_current) return;
  pool.merged.clear();
  const auto newest = std::ranges::max_element(pool.slices, {}, &Slice::generation);
  const auto is_newest = [&](const Slice& slice) { return slice.generation == newest->generation; };
  if (std::ranges::count_if(pool.slices, is_newest) > 1) {
    for (const Slice& slice : pool.slices) {
      if (is_newest(slice)) pool.merged.insert(pool.merged.end(), slice.cards.begin(), slice.cards.end());
    }
  }
  pool.rooms.clear();
  pool.node.cards.clear();
  for (const ClaimCard& card : pool.Cards()) {
    CardRoom room{.memory = card.memory, .compute = card.compute};
    if (const auto used = std::ranges::find(pool.used, card.name, &CardUsage::device); used != pool.used.end()) {
      Take(card, used->memory, used->compute, room);
    }
    pool.rooms.push_back(room);
    pool.node.cards.push_back({.free = FreeUnits(card, room)});
  }
  pool.worth_policy_number = 0;
  pool.is_current = true;
}

void ClaimState::RefreshWorth(Pool& pool, const HostRoom& host) {
  const std::int64_t cpu = host.cpu_milli - pool.expected.cpu_milli;
  const std::int64_t memory = host.memory_mib - pool.expected.memory_mib;
  if (pool.worth_policy_number == policy_number_ && pool.node.cpu_milli_free == cpu &&
      pool.node.memory_mib_free == memory) {
    return;
  }
  pool.node.cpu_milli_free = cpu;
  pool.node.memory_mib_free = memory;
  pool.worth = policy_->WorthOf(pool.node);
  pool.worth_policy_number = policy_number_;
}

void ClaimState::RefreshPolicy() {
  std::shared_ptr<const PlacementPolicy> policy = policies_.policy();
  if (policy == policy_) return;
  policy_ = std::move(policy);
  ++policy_number_;
}

void ClaimState::Record(const std::string& pod, const std::vector<HeldCard>& held) {
  std::map<std::pair<std::string, TextHash>, std::int64_t> memory_by_card;
  for (const HeldCard& one : held) memory_by_card[{one.pool, one.device}] += one.memory;
  Request request;
  for (const auto& [where, memory] : memory_by_card) {
    Pool& pool = pools_[where.first];
    Refresh(pool);
    const std::span<const ClaimCard> cards = pool.Cards();
    const auto card = std::ranges::find(cards, where.second, &ClaimCard::name);
    if (card == cards.end()) continue;
    CardRoom room{.memory = card->memory, .compute = card->compute};
    Take(*card, memory, 0, room);
    ++request.cards;
    request.units = std::max(request.units, kUnitsPerCard - FreeUnits(*card, room));
  }
  if (request.units == 0) return;
  if (const auto facts = hosts_.FindPod(pod)) {
    request.cpu_milli = facts->cpu_milli;
    request.memory_mib = facts->memory_mib;
  }
  policies_.RecordRequest(request);
}

void ClaimState::Forget(const std::string& pod) {
  const auto found = expected_.find(pod);
  if (found == expected_.end()) return;
  const ExpectedPod expected = std::move(found->second);
  expected_.erase(found);
  for (const auto& [key, held] : expected.held) Count(held, -1);
  Pool& pool = pools_[expected.node];
  pool.expected.cpu_milli -= expected.host.cpu_milli;
  pool.expected.memory_mib -= expected.host.memory_mib;
  EraseIfUnused(expected.node);
}

void ClaimState::ForgetClaim(const ClaimFacts& claim) {
  std::vector<std::string> done;
  for (auto& [pod, expected] : expected_) {
    const auto is_of_claim = [&, &uid = pod](const auto& entry) {
      return claim.is_of_extended_resource ? entry.first.empty() && uid == claim.pod : entry.first == claim.key;
    };
    for (const auto& entry : expected.held) {
      if (is_of_claim(entry)) Count(entry.second, -1);
    }
    std::erase_if(expected.held, is_of_claim);
    if (expected.held.empty()) done.push_back(pod);
  }
  for (const std::string& pod : done) Forget(pod);
}

void ClaimState::ForgetOld() {
  std::vector<std::string> old;
  for (const auto& [pod, expected] : expected_) {
    if (now_() - expected.at >= kMaxExpected) old.push_back(pod);
  }
  for (const std::string& pod : old) Forget(pod);
}

void ClaimState::Expect(const PodFacts& pod, const std::string& node, const OpenClaims& open,
                        const std::vector<TakenCard>& taken) {
  if (pod.uid.empty()) return;
  ExpectedPod expected{.node = node, .host = {.cpu_milli = pod.cpu_milli, .memory_mib = pod.memory_mib}, .at = now_()};
  Pool& pool = pools_[node];
  for (const TakenCard& one : taken) {
    expected.held.emplace_back(open.keys[one.claim],
                               HeldCard{node, pool.Cards()[one.card].name, one.memory, one.compute});
  }
  for (const auto& [key, held] : expected.held) Count(held, +1);
  pool.expected.cpu_milli += pod.cpu_milli;
  pool.expected.memory_mib += pod.memory_mib;
  expected_[pod.uid] = std::move(expected);
}

std::vector<int> ClaimState::Prioritize(const PodFacts& pod, const PodClaims& claims,
                                        std::span<const std::string_view> nodes) {
  if (!hosts_.Synced()) return {};
  const std::vector<HostRoom> hosts = hosts_.RoomOf(nodes);
  const MutexLock lock(mutex_);
  if (!slices_synced_ || !claims_synced_ || !classes_synced_) return {};
  if (!recorded_) {
    recorded_ = true;
    for (const auto& [key, claim] : claims_) Record(claim.pod, claim.held);
  }
  Forget(pod.uid);
  ForgetOld();
  const auto open = OpenClaimsOf(claims);
  if (!open) return {};
  std::vector<const CardsClaim*> requested;
  requested.reserve(open->claims.size());
  for (const CardsClaim& claim : open->claims) requested.push_back(&claim);
  RefreshPolicy();
  const Request host{.cpu_milli = pod.cpu_milli, .memory_mib = pod.memory_mib};
  std::vector<double> raw(nodes.size(), -std::numeric_limits<double>::infinity());
  std::vector<TakenCard> best_taken;
  double best = -std::numeric_limits<double>::infinity();
  std::string best_node;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto found = pools_.find(nodes[i]);
    if (found == pools_.end() || !hosts[i].is_known) continue;
    Pool& pool = found->second;
    Refresh(pool);
    auto taken = AllocateCards(pool.Cards(), pool.rooms, requested);
    if (!taken || taken->empty()) continue;
    RefreshWorth(pool, hosts[i]);
    raw[i] = RateTaken(pool.node, pool.worth, host, pool.Cards(), pool.rooms, *taken, *policy_);
    if (raw[i] <= best) continue;
    best = raw[i];
    best_node = nodes[i];
    best_taken = *std::move(taken);
  }
  if (best_node.empty()) return {};
  Expect(pod, best_node, *open, best_taken);
  return ScoresOf(raw);
}

void ClaimState::RateHost(const PodFacts& pod, std::span<const std::string_view> nodes, std::vector<double>& raw) {
  const std::vector<HostRoom> hosts = hosts_.RoomOf(nodes);
  const MutexLock lock(mutex_);
  ForgetOld();
  RefreshPolicy();
  const Request host{.cpu_milli = pod.cpu_milli, .memory_mib = pod.memory_mib};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto found = pools_.find(nodes[i]);
    if (found == pools_.end() || !hosts[i].is_known) continue;
    Refresh(found->second);
    RefreshWorth(found->second, hosts[i]);
    raw[i] = policy_->Rate(found->second.node, found->second.worth, host, {}).node;
  }
}

ClaimFigures ClaimState::Figures() {
  const MutexLock lock(mutex_);
  ClaimFigures figures;
  for (auto& [node, pool] : pools_) {
    Refresh(pool);
    figures.cards += static_cast<int>(pool.Cards().size());
    figures.free_cards += pool.node.FreeUnits() / static_cast<double>(kUnitsPerCard);
  }
  for (const auto& [key, claim] : claims_) figures.allocated_claims += !claim.held.empty();
  return figures;
}

}  // namespace sluice::scheduler
