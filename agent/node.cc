// Node: GPUs and allocations. Settings: node_settings.cc. Connections and frames: node_session.cc. Pages and budgets:
// node_budgets.cc. Tokens: node_compute.cc. Opportunistic ones and the link: node_priority.cc. Status: node_status.cc.
// Events: node_events.cc.
#include "agent/node.h"

#include <algorithm>

#include "agent/node_private.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kVacantNs = 10'000'000'000;  // longer than most containers need between two processes

}  // namespace

Node::Node(Port* port, const Config& config, uint64_t first_generation)
    : port_(port),
      config_(config),
      host_(0, {.lending = Lending::kEven, .floor_percent = 0, .step = 1}),
      next_generation_(first_generation) {}

Node::~Node() = default;

Bytes Node::Capacity(const Card& card, Bytes contexts) const {
  const Bytes kept = card.driver_reserved + config_.reserve + contexts;
  return card.memory > kept ? card.memory - kept : 0;
}

Bytes Node::ContextAllotment(const Allocation& a, size_t gpu) const {
  return std::max(kMaxContextBytes, PercentOf(cards_.at(a.spec.gpus[gpu].uuid)->card.memory, Percent(a, gpu)) / 8);
}

void Node::SetCards(const std::vector<Card>& cards) {
  for (const Card& c : cards) {
    const auto it = cards_.find(c.uuid);
    if (it != cards_.end()) {
      it->second->card = c;
      it->second->ledger.SetCapacity(Capacity(c, it->second->contexts));
    } else {
      cards_[c.uuid] =
          std::make_unique<CardState>(CardState{c, Ledger(Capacity(c, 0), config_.ledger), 0, Arbiter(TokenPolicy())});
    }
  }
  for (auto& [group, a] : allocations_) Refresh(*a);
  dirty_ = true;
}

void Node::SetConfig(const Config& config) {
  config_ = config;
  config_error_.clear();
  for (auto& [uuid, c] : cards_) {
    c->ledger.SetCapacity(Capacity(c->card, c->contexts));
    c->ledger.SetPolicy(config.ledger);
    c->arbiter.SetPolicy(TokenPolicy());
  }
  for (auto& [group, a] : allocations_) Refresh(*a);
  dirty_ = true;
}

void Node::SetHostLimit(Bytes bytes) {
  host_.SetCapacity(bytes);
  dirty_ = true;
}

void Node::SetProcesses(const std::string& uuid, const std::map<int64_t, Bytes>& used) {
  const auto it = cards_.find(uuid);
  if (it == cards_.end()) return;
  CardState& card = *it->second;
  std::map<int64_t, Bytes> others = used;
  std::map<const Allocation*, Bytes> of_container;
  Bytes contexts = 0;
  for (auto& [id, s] : sessions_) {
    if (s->phase != Session::Phase::kServed) continue;
    for (size_t i = 0; i < s->allocation->spec.gpus.size(); ++i) {
      if (s->allocation->spec.gpus[i].uuid != uuid) continue;
      s->uncounted[i] = s->contexts[i] = 0;
      const auto own = others.find(s->pid);
      if (own == others.end()) continue;
      const Bytes counted = Read(*s, i).unmanaged_bytes, extra = own->second > counted ? own->second - counted : 0;
      // All containers pay for a container's first contexts, and it alone for more of them.
      Bytes& common = of_container[s->allocation];
      const Bytes left = ContextAllotment(*s->allocation, i) - common;
      const Bytes context = std::min({extra, kMaxContextBytes, left});
      common += context;
      s->uncounted[i] = extra - context;
      s->contexts[i] = context;
      contexts += context;
      others.erase(own);
    }
    for (size_t i = 0; i < s->uncounted.size(); ++i) {
      const Bytes deducted = (s->uncounted[i] + config_.ledger.step - 1) / config_.ledger.step * config_.ledger.step;
      if (deducted == s->deducted[i]) continue;
      s->deducted[i] = deducted;
      MarkDue(id, i);
      dirty_ = true;
    }
  }
  for (const auto& [pid, bytes] : others) contexts += bytes;
  contexts = (contexts + config_.ledger.step - 1) / config_.ledger.step * config_.ledger.step;
  if (contexts == card.contexts) return;
  card.contexts = contexts;
  card.ledger.SetCapacity(Capacity(card.card, contexts));
  for (auto& [group, a] : allocations_) Refresh(*a);
  dirty_ = true;
}

size_t Node::Processes(const std::string& id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? 0 : it->second->sessions.size();
}

void Node::SetDevicesInUse(const DevicesInUse& in_use) {
  for (auto& [group, a] : allocations_) {
    if (a->spec.devices.empty()) continue;  // not made by kubelet
    const DeviceOwner* owner = nullptr;
    for (const std::string& device : a->spec.devices) {
      if (const auto it = in_use.find(device); it != in_use.end()) owner = &it->second;
    }
    const bool stale = owner == nullptr && a->sessions.empty();
    if (owner != nullptr && a->spec.pod.empty()) {
      a->spec.ns = owner->ns;
      a->spec.pod = owner->pod;
      a->spec.container = owner->container;
    } else if (stale == a->stale) {
      continue;
    }
    a->stale = stale;
    Refresh(*a);
    dirty_ = true;
  }
}

void Node::SetUsed(const std::string& uuid, Bytes bytes) {
  const auto it = cards_.find(uuid);
  if (it != cards_.end()) it->second->used = bytes;
}

bool Node::AddAllocation(const AllocationSpec& spec, const std::map<std::string, std::string>& live,
                         std::string* error) {
  for (const GpuUnits& g : spec.gpus) {
    if (cards_.contains(g.uuid)) continue;
    *error = "allocation " + spec.id + ": no GPU " + g.uuid + " on this node";
    return false;
  }
  if (by_id_.contains(spec.id)) {
    Allocation& a = *by_id_[spec.id];
    if (a.spec.gpus.size() != spec.gpus.size()) {
      *error = "allocation " + spec.id + ": its list of GPUs may not change";
      return false;
    }
    a.spec = spec;
    Refresh(a);
    dirty_ = true;
    return true;
  }
  auto a = std::make_unique<Allocation>();
  a->group = next_group_++;
  a->spec = spec;
  a->live_text = live;
  a->live = settings::ParseAll(live, "").settings;
  a->ended.resize(spec.gpus.size());
  a->link_users.resize(spec.gpus.size());
  a->leases.resize(spec.gpus.size());
  by_id_[spec.id] = a.get();
  Refresh(*a);
  allocations_[a->group] = std::move(a);
  dirty_ = true;
  return true;
}

void Node::SetPod(const std::string& id, const PodInfo& pod) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end() || it->second->pod == pod) return;
  it->second->pod = pod;
  Refresh(*it->second);
  dirty_ = true;
}

void Node::RemoveAllocation(const std::string& id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Allocation* a = it->second;
  by_id_.erase(it);
  a->removed = true;
  if (!a->sessions.empty()) return;  // Drop() of the last session ends it
  Forget(*a);
  dirty_ = true;
}

void Node::Forget(const Allocation& a) {
  for (const SessionId observer : a.observers) {
    sessions_.erase(observer);
    port_->Close(observer);
  }
  for (const GpuUnits& g : a.spec.gpus) {
    cards_.at(g.uuid)->ledger.RemoveGroup(a.group);
    cards_.at(g.uuid)->arbiter.RemoveClient(a.group);
    cards_.at(g.uuid)->link.Remove(a.group);
  }
  host_.RemoveGroup(a.group);
  allocations_.erase(a.group);  // destroys `a`
}

void Node::RecoverUntil(uint64_t now_ns) {
  recover_until_ns_ = now_ns;
  for (const auto& [group, a] : allocations_) {
    for (const GpuUnits& g : a->spec.gpus) cards_.at(g.uuid)->ledger.Vacate(group);
  }
}

void Node::Vacate(uint64_t now_ns) {
  for (auto& [group, a] : allocations_) {
    const bool used = std::ranges::any_of(
        a->sessions, [&](SessionId id) { return sessions_.at(id)->phase == Session::Phase::kServed; });
    if (used || a->used_ns == 0) a->used_ns = now_ns;
    if (now_ns - a->used_ns < kVacantNs) continue;
    for (const GpuUnits& g : a->spec.gpus) cards_.at(g.uuid)->ledger.Vacate(group);
  }
}

void Node::Refresh(Allocation& a) {
  a.effective = Effective(a, a.live);
  SetLimits(a);
  uint64_t weight = 0;
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    CardState& card = *cards_.at(a.spec.gpus[i].uuid);
    const auto [request, limit] = Compute(a, i);
    if (IsOpportunistic(a)) {
      card.ledger.SetOpportunistic(a.group, Percent(a, i));
      card.arbiter.SetOpportunistic(a.group, Percent(a, i) * 10000, limit);
    } else {
      card.ledger.SetGroup(a.group, Guaranteed(a, i), Percent(a, i));
      card.arbiter.SetClient(a.group, request, limit);
    }
    weight += Percent(a, i);
  }
  host_.SetGroup(a.group, 0, weight);
  for (const SessionId id : a.sessions) {
    Session& s = *sessions_.at(id);
    if (s.phase != Session::Phase::kServed) continue;
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) MarkDue(id, i);
  }
  dirty_ = true;
}

bool Node::ResolveId(const std::string& prefix, std::string* id, std::string* error) const {
  if (by_id_.contains(prefix)) {
    *id = prefix;
    return true;
  }
  std::vector<std::string> found;
  for (auto it = by_id_.lower_bound(prefix); it != by_id_.end() && it->first.starts_with(prefix); ++it)
    found.push_back(it->first);
  const bool begins = !found.empty();
  if (!begins) {
    for (const auto& [name, a] : by_id_) {
      if (IsNamed(*a, prefix)) found.push_back(name);
    }
  }
  if (found.size() == 1 && !prefix.empty()) {
    *id = found[0];
    return true;
  }
  std::string known;
  for (const auto& [name, a] : by_id_) {
    if (known.size() > 200) {
      known += ", ...";
      break;
    }
    known += (known.empty() ? "" : ", ") + name;
  }
  *error = "id: '" + prefix + "' " +
           (found.size() < 2 || prefix.empty() ? "is unknown"
            : begins                           ? "begins several ids"
                                               : "is the name of several allocations") +
           "; accepted: " + (known.empty() ? "none, as nothing is allocated" : known);
  return false;
}

// "namespace/pod", "namespace/pod/container", or the number of an attached process.
bool Node::IsNamed(const Allocation& a, const std::string& name) const {
  const std::string pod = a.pod ? a.pod->ns + "/" + a.pod->pod : a.spec.ns + "/" + a.spec.pod;
  const std::string& container = a.pod ? a.pod->container : a.spec.container;
  if (pod.size() > 1 && (name == pod || name == pod + "/" + container)) return true;
  return std::ranges::any_of(Served(a),
                             [&](const Session* s) { return s->pid != 0 && std::to_string(s->pid) == name; });
}

uint32_t Node::FreeUnits(const std::string& uuid) const {
  uint32_t used = 0;
  Bytes guaranteed = 0;  // `sluice set` may raise memory beyond the worth of the units
  for (const auto& [group, a] : allocations_) {
    if (((a->removed || a->stale) && a->sessions.empty()) || IsOpportunistic(*a)) continue;
    for (size_t i = 0; i < a->spec.gpus.size(); ++i) {
      if (a->spec.gpus[i].uuid != uuid) continue;
      used += Percent(*a, i);
      guaranteed += Guaranteed(*a, i);
    }
  }
  const Bytes capacity = cards_.at(uuid)->ledger.capacity();
  if (used >= SLUICE_UNITS_PER_GPU || guaranteed >= capacity) return 0;
  return std::min(SLUICE_UNITS_PER_GPU - used, UnitsIn(capacity - guaranteed, capacity));
}

std::string Node::ChooseCard(uint32_t units, const std::vector<std::string>& taken) const {
  std::string best;
  uint32_t best_free = 0;
  for (const auto& [uuid, c] : cards_) {
    const uint32_t free = FreeUnits(uuid);
    if (free < units || std::ranges::find(taken, uuid) != taken.end()) continue;
    if (best.empty() || free > best_free) {
      best = uuid;
      best_free = free;
    }
  }
  return best;
}

const Ledger* Node::LedgerOf(const std::string& uuid) const {
  const auto it = cards_.find(uuid);
  return it == cards_.end() ? nullptr : &it->second->ledger;
}

}  // namespace sluice::agent
