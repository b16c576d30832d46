// Node: compute tokens, and the memory that follows them while working sets exceed a GPU.
#include <algorithm>
#include <cstring>

#include "agent/node_private.h"

namespace sluice::agent {
namespace {

constexpr double kSwitchBytesPerNs = 22;  // managed memory, both directions at once (H200)
// Working sets that exceed the GPU by less than a 32nd take no turns: in a turn of the least length (40 exchanges, see
// arbiter.cc) as much of the time goes to the exchange, and one container waits meanwhile.
constexpr Bytes kMarginOfWorkingSets = 32;
constexpr uint64_t kSilentNs = 2500 * kMs;  // a running hook writes its heartbeat at least every second

}  // namespace

// The group that has the token gets its whole working set. Others stay resident in the memory that is left beside the
// floors, first the one whose last time slice is longest ago. Slices go round-robin: that group gets the token next,
// and then finds its memory resident.
void Node::ChooseResident(CardState& card) {
  Bytes left = card.ledger.capacity();
  std::map<GroupId, Bytes> floors;
  for (const auto& [group, a] : allocations_) {
    for (size_t i = 0; i < a->spec.gpus.size(); ++i) {
      if (a->spec.gpus[i].uuid != card.card.uuid) continue;
      floors[group] = IsParked(*a) ? 0 : std::min(left, Guaranteed(*a, i) / 100 * config_.ledger.floor_percent);
      left -= floors[group];
    }
  }
  const auto above_floor = [&](GroupId group) {
    const Bytes held = card.held[group];
    return held - std::min(held, floors[group]);
  };
  left -= std::min(left, above_floor(card.favored));
  std::erase_if(card.resident, [&](GroupId group) {
    if (group == card.favored || card.held[group] == 0 || above_floor(group) > left) return true;
    left -= above_floor(group);
    return false;
  });
  card.resident.push_back(card.favored);
  card.arbiter.SetResident(card.resident, card.resident_ns);
}

// A grant under pressure gives the group its memory: the bytes of others that no longer fit are reclaimed at once.
void Node::FollowToken(CardState& card, uint64_t now_ns) {
  const GroupId group = card.tokens && card.arbiter.pressure() ? card.arbiter.current() : 0;
  if (group == card.favored) return;
  if (std::ranges::find(card.resident, group) == card.resident.end()) {
    card.resident_ns = now_ns;
    if (group != 0 && card.favored != 0) card.switch_began_ns = now_ns;
  }
  card.favored = group;
  if (group != 0) {
    ChooseResident(card);
  } else {
    card.resident.clear();
  }
  ReadPages(now_ns);
  dirty_ = true;
}

void Node::ExpireSilentHolders(uint64_t now_ns) {
  for (auto& [uuid, card] : cards_) {
    const auto holder = card->arbiter.holder();
    if (!holder || !card->arbiter.AnyWaiting()) continue;
    const auto it = sessions_.find(*holder / SLUICE_MAX_GPUS);
    if (it == sessions_.end() || it->second->page == nullptr) continue;
    const uint64_t beat = Load(it->second->page->heartbeat_ns);
    if (beat != 0 && beat < now_ns && now_ns - beat > kSilentNs) card->arbiter.Expire(now_ns);
  }
}

void Node::SetPressure(const std::map<CardState*, std::map<GroupId, Bytes>>& working) {
  for (auto& [uuid, card] : cards_) {
    Bytes sum = 0;
    const auto it = working.find(card.get());
    if (it != working.end()) {
      for (const auto& [group, b] : it->second) sum = Sum(sum, b);
    }
    const Bytes capacity = card->ledger.capacity();
    const bool exceeded =
        it != working.end() && it->second.size() > 1 && sum > Sum(capacity, capacity / kMarginOfWorkingSets);
    // The bytes that do not fit move at every switch. Its cost is measured; the rate of the link stands in before the
    // first one.
    const auto by_link = static_cast<Nanos>(static_cast<double>(sum - std::min(sum, capacity)) / kSwitchBytesPerNs);
    card->arbiter.SetPressure(exceeded, card->switch_ns > 0 ? card->switch_ns : by_link);
  }
}

void Node::UpdateDemand(uint64_t now_ns) {
  for (auto& [uuid, card] : cards_) {
    const bool tokens = card->arbiter.NeedsTokens(now_ns);
    if (tokens == card->tokens) continue;
    card->tokens = tokens;
    if (tokens) {
      card->tokens_since_ns = now_ns;
    } else {
      card->tokens_ns += now_ns - card->tokens_since_ns;
    }
    FollowToken(*card, now_ns);
    AddEvent("", tokens ? "tokens demanded" : "tokens not demanded",
             "GPU " + uuid + (tokens ? ": " + std::string(card->arbiter.reason()) : ""));
    for (auto& [id, s] : sessions_) {
      if (s->phase != Session::Phase::kServed) continue;
      for (size_t i = 0; i < s->allocation->spec.gpus.size(); ++i) {
        if (s->allocation->spec.gpus[i].uuid == uuid) MarkDue(id, i);
      }
    }
  }
}

void Node::Token(Session& s, const sluice_frame& frame, uint64_t now_ns) {
  if (s.phase != Session::Phase::kServed) return;
  const sluice_token& t = frame.u.token;
  const Allocation& a = *s.allocation;
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    if (std::strncmp(t.uuid, a.spec.gpus[i].uuid.c_str(), sizeof(t.uuid)) != 0) continue;
    CardState& card = *cards_.at(a.spec.gpus[i].uuid);
    s.uses_tokens = true;
    if (frame.h.type == SLUICE_TOKEN_REQUEST) {
      if (IsParked(a)) {
        EndPark(*s.allocation, "pid " + std::to_string(s.pid), now_ns);
        Settle();
      }
      // A repeated request: PING shows that the agent runs, however long the others' time slices last.
      if (card.arbiter.IsWaiting(Member(s.id, i))) port_->Send(s.id, Frame(s, SLUICE_PING));
      card.arbiter.Request(a.group, Member(s.id, i), t.burst_ns, now_ns);
    } else {
      card.arbiter.Release(Member(s.id, i), t.id, t.used_ns, t.burst_ns, now_ns);
    }
    return Pump(card, now_ns);
  }
}

void Node::Pump(CardState& card, uint64_t now_ns) {
  for (const Arbiter::Action& action : card.arbiter.Advance(now_ns)) {
    const auto it = sessions_.find(action.holder / SLUICE_MAX_GPUS);
    if (it == sessions_.end() || it->second->phase != Session::Phase::kServed) continue;
    const bool grant = action.kind == Arbiter::Action::Kind::kGrant;
    if (grant) SendIfDue(*it->second, action.holder % SLUICE_MAX_GPUS);
    sluice_frame f = Frame(*it->second, grant ? SLUICE_TOKEN_GRANT : SLUICE_TOKEN_REVOKE);
    SetText(f.u.token.uuid, sizeof(f.u.token.uuid), card.card.uuid);
    f.u.token.id = action.id;
    f.u.token.quantum_ns = action.quantum;
    f.u.token.lease_ns = action.lease;
    port_->Send(it->first, f);
  }
  FollowToken(card, now_ns);
}

}  // namespace sluice::agent
