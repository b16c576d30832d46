// Node: opportunistic allocations, and the shares of the link to the host.
#include <algorithm>
#include <utility>

#include "agent/node_private.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kHeldReportNs = 2000 * kMs;  // an allocation that waits for so long is recorded
constexpr uint64_t kGrantedNs = 1000 * kMs;     // one that got a token lately only waits for the next
// The time over which a process's use of the link is measured.
constexpr uint64_t kUseNs = 400 * kMs;

// Of managed memory in both directions together; of 63 GB/s of a link of generation 5 with 16 lanes (H200,
// docs/design/driver.md), and where NVML does not describe the link.
constexpr uint64_t kManagedPercent = 40;
constexpr Bytes kUnknownLink = 25'000'000'000;

}  // namespace

bool Node::IsOpportunistic(const Allocation& a) { return a.effective.priority == settings::Priority::kOpportunistic; }

// An opportunistic process always needs a token: its launches are then held as soon as nothing is lent.
// A parked one's request wakes it.
bool Node::NeedsTokens(const Allocation& a, const CardState& card) const {
  return card.tokens || IsOpportunistic(a) || IsParked(a);
}

std::string Node::HeldBy(const Allocation& a, uint64_t now_ns) const {
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    const CardState& card = *cards_.at(a.spec.gpus[i].uuid);
    const Bytes has = card.ledger.budget(a.group), least = card.ledger.opportunistic_min();
    if (has < least) {
      return "no memory of GPU " + card.card.uuid + " is lent: " + settings::HumanBytes(has) + " of the " +
             settings::HumanBytes(least) + " that launches need";
    }
  }
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    const CardState& card = *cards_.at(a.spec.gpus[i].uuid);
    const bool waits =
        std::ranges::any_of(a.sessions, [&](SessionId session) { return card.arbiter.IsWaiting(Member(session, i)); });
    const Nanos granted = card.arbiter.LastGrant(a.group);
    if (waits && (granted == 0 || now_ns - granted > kGrantedNs))
      return "GPU " + card.card.uuid + " has no idle time: guaranteed containers use it";
  }
  return "";
}

void Node::HoldOpportunistic(uint64_t now_ns) {
  for (auto& [group, a] : allocations_) {
    if (!IsOpportunistic(*a)) continue;
    for (const GpuUnits& g : a->spec.gpus) {
      CardState& card = *cards_.at(g.uuid);
      card.arbiter.SetHeld(group, card.ledger.budget(group) < card.ledger.opportunistic_min());
    }
    const bool served = std::ranges::any_of(
        a->sessions, [&](SessionId id) { return sessions_.at(id)->phase == Session::Phase::kServed; });
    const std::string held = served && !IsParked(*a) ? HeldBy(*a, now_ns) : "";
    if (held.empty()) {
      if (std::exchange(a->held_reported, false)) AddFinding(a->spec.id, "resumed", "launches run again");
      a->held_ns = 0;
    } else if (a->held_ns == 0) {
      a->held_ns = now_ns;
    }
    a->held = held;
    if (held.empty() || a->held_reported || now_ns - a->held_ns < kHeldReportNs) continue;
    a->held_reported = true;
    AddFinding(a->spec.id, "held", held);
  }
}

void Node::CountLink(Session& s, size_t gpu, const sluice_gpu_counters& c) {
  Session::LinkUse& link = s.link[gpu];
  const uint64_t beat = s.page == nullptr ? 0 : Load(s.page->heartbeat_ns);
  const Bytes moved = Sum(Sum(c.fetched_bytes, c.evicted_bytes), c.fault_bytes);
  if (beat - link.beat_ns < kUseNs) return;
  // A page that was read for the first time tells nothing yet.
  const uint64_t took = beat - link.beat_ns;
  const Bytes more = link.beat_ns == 0 || beat < link.beat_ns || moved < link.moved ? 0 : moved - link.moved;
  // Both are the process's words.
  link.per_s = static_cast<Bytes>(std::min(static_cast<double>(more) * 1e9 / static_cast<double>(took), 1e15));
  link.beat_ns = beat;
  link.moved = moved;
}

void Node::ShareLinks(uint64_t now_ns) {
  for (auto& [uuid, card] : cards_) {
    const Bytes described = card->card.link_bytes_per_s;
    card->link.SetCapacity(config_.link_bytes_per_s > 0 ? config_.link_bytes_per_s
                           : described > 0              ? described / 100 * kManagedPercent
                                                        : kUnknownLink,
                           config_.link_bytes_per_s > 0);
  }
  std::map<CardState*, std::vector<LinkShares::Member>> members;
  for (const auto& [group, a] : allocations_) {
    for (size_t i = 0; i < a->spec.gpus.size(); ++i) {
      CardState& card = *cards_.at(a->spec.gpus[i].uuid);
      // While memory follows the token, its holder has the link.
      if (!config_.link_metered || (card.favored != 0 && !IsOpportunistic(*a))) continue;
      Bytes per_s = 0;
      a->link_users[i] = 0;
      for (const SessionId id : a->sessions) {
        const Session& s = *sessions_.at(id);
        if (s.phase != Session::Phase::kServed) continue;
        if (s.link[i].per_s > 0) ++a->link_users[i];
        if (!s.demand[i].Idle(now_ns, 5000 * kMs)) per_s = Sum(per_s, s.link[i].per_s);
      }
      card.link.Use(group, per_s);
      members[&card].push_back({group, Percent(*a, i), IsOpportunistic(*a)});
    }
  }
  for (auto& [uuid, card] : cards_) {
    if (!card->link.Plan(members[card.get()], now_ns)) continue;
    for (auto& [id, s] : sessions_) {
      if (s->phase != Session::Phase::kServed) continue;
      for (size_t i = 0; i < s->allocation->spec.gpus.size(); ++i) {
        if (s->allocation->spec.gpus[i].uuid == uuid && LinkRate(*s, i) != s->link[i].sent_per_s) MarkDue(id, i);
      }
    }
  }
}

// Of a container's share each of its processes that uses the link has an equal part. Each budget carries it, so that it
// must not walk over the processes.
uint64_t Node::LinkRate(const Session& s, size_t gpu) const {
  const Allocation& a = *s.allocation;
  const Bytes rate = cards_.at(a.spec.gpus[gpu].uuid)->link.Rate(a.group);
  const uint64_t users = a.link_users[gpu] + (s.link[gpu].per_s > 0 ? 0 : 1);
  return rate == 0 ? 0 : std::max<Bytes>(rate / std::max<uint64_t>(users, 1), 1);
}

}  // namespace sluice::agent
