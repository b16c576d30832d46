// Node: allocations and settings. Sessions and frames: node_session.cc. Status: node_status.cc.
#include "agent/node.h"

#include <algorithm>

#include "agent/node_private.h"
#include "sluice/names.h"

namespace sluice::agent {
namespace {

constexpr size_t kMaxEvents = 2000;
constexpr uint64_t kVacantNs = 10'000'000'000;  // longer than most containers need between two processes

Bytes PercentOf(Bytes capacity, uint32_t percent) {
  return static_cast<Bytes>(static_cast<unsigned __int128>(capacity) * percent / SLUICE_UNITS_PER_GPU);
}

// As many units as that is worth of a card.
uint32_t UnitsIn(Bytes bytes, Bytes capacity) {
  return capacity == 0 ? 0
                       : static_cast<uint32_t>(static_cast<unsigned __int128>(bytes) * SLUICE_UNITS_PER_GPU / capacity);
}

template <typename T>
void Over(std::optional<T>& to, const std::optional<T>& from) {
  if (from) to = from;
}

// A fraction and an amount of memory exclude each other: the one that is said last wins.
void Layer(settings::Settings& to, const settings::Settings& from) {
  if (from.gpu_percent) to.gpu_memory.reset();
  if (from.gpu_memory) to.gpu_percent.reset();
  Over(to.gpu_percent, from.gpu_percent);
  Over(to.gpu_memory, from.gpu_memory);
  Over(to.memory_limit, from.memory_limit);
  Over(to.visible, from.visible);
  Over(to.memory_factor, from.memory_factor);
  Over(to.compute_request, from.compute_request);
  Over(to.compute_limit, from.compute_limit);
  Over(to.prefetch, from.prefetch);
  Over(to.log_level, from.log_level);
}

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
  constexpr Bytes kContextMost = 1ull << 30;  // more than a context and its code take is the program's
  const auto it = cards_.find(uuid);
  if (it == cards_.end()) return;
  CardState& card = *it->second;
  std::map<int64_t, Bytes> others = used;
  Bytes contexts = 0;
  for (auto& [id, s] : sessions_) {
    if (s->phase != Session::Phase::kServed) continue;
    for (size_t i = 0; i < s->allocation->spec.gpus.size(); ++i) {
      if (s->allocation->spec.gpus[i].uuid != uuid) continue;
      s->beyond[i] = 0;
      const auto mine = others.find(s->pid);
      if (mine == others.end()) continue;
      const Bytes told = Read(*s, i).plain_bytes, extra = mine->second > told ? mine->second - told : 0;
      const Bytes context = std::min(extra, kContextMost);
      s->beyond[i] = extra - context;
      contexts += context;
      others.erase(mine);
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
    if (a->spec.devices.empty()) continue;  // not kubelet's
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

settings::Settings Node::Effective(const Allocation& a, const settings::Settings& live) const {
  settings::Settings out = a.spec.settings;
  if (a.pod) {
    settings::Settings said = a.pod->settings;
    said.gpu_percent.reset();
    const auto card = cards_.find(a.spec.gpus.front().uuid);
    if (said.gpu_memory && card != cards_.end()) {
      const Bytes worth = card->second->card.memory / SLUICE_UNITS_PER_GPU * a.spec.gpus.front().units;
      said.gpu_memory = std::min(*said.gpu_memory, worth);
    }
    Layer(out, said);
  }
  const std::string pod = a.pod ? a.pod->pod : a.spec.pod;
  const std::string path =
      a.pod ? a.pod->ns + "/" + pod + "/" + a.pod->container : a.spec.ns + "/" + pod + "/" + a.spec.container;
  for (const ClientRule& rule : config_.clients) {
    if (Matches(rule.id, a.spec.id) || (!pod.empty() && Matches(rule.id, path))) Layer(out, rule.settings);
  }
  Layer(out, live);
  return out;
}

Bytes Node::Guaranteed(const Allocation& a, size_t gpu) const {
  const GpuUnits& g = a.spec.gpus[gpu];
  const auto card = cards_.find(g.uuid);
  if (card == cards_.end() || a.stale) return 0;
  const Bytes capacity = card->second->ledger.capacity();
  if (a.effective.gpu_memory) return std::min(*a.effective.gpu_memory, capacity);
  return PercentOf(capacity, Percent(a, gpu));
}

uint32_t Node::Percent(const Allocation& a, size_t gpu) const {
  // The units are what the scheduler gave; a fraction counts where it was changed since.
  if (a.effective.gpu_percent && a.effective.gpu_percent != a.spec.settings.gpu_percent) {
    return std::min<uint32_t>(*a.effective.gpu_percent, SLUICE_UNITS_PER_GPU);
  }
  return a.spec.gpus[gpu].units;
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
  by_id_[spec.id] = a.get();
  Refresh(*a);
  allocations_[a->group] = std::move(a);
  dirty_ = true;
  return true;
}

void Node::SetPod(const std::string& id, const PodOf& pod) {
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
  if (!a->sessions.empty()) return;  // Drop() of the last one ends it
  Forget(*a);
  dirty_ = true;
}

void Node::Forget(const Allocation& a) {
  for (const GpuUnits& g : a.spec.gpus) {
    cards_.at(g.uuid)->ledger.RemoveGroup(a.group);
    cards_.at(g.uuid)->arbiter.RemoveClient(a.group);
  }
  host_.RemoveGroup(a.group);
  allocations_.erase(a.group);  // `a` is gone
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

std::pair<uint32_t, uint32_t> Node::Compute(const Allocation& a, size_t gpu) const {
  const uint32_t limit = a.effective.compute_limit.value_or(1000000);
  return {a.effective.compute_request.value_or(std::min(Percent(a, gpu) * 10000, limit)), limit};
}

Arbiter::Policy Node::TokenPolicy() const {
  return {.window = config_.window_ms * 1'000'000ull,
          .quantum_min = config_.quantum_min_us * 1000ull,
          .quantum_max = config_.quantum_max_us * 1000ull,
          .lease_factor = config_.lease_factor,
          .pressure_window = config_.pressure_window_ms * 1'000'000ull};
}

void Node::Refresh(Allocation& a) {
  a.effective = Effective(a, a.live);
  uint64_t weight = 0;
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    CardState& card = *cards_.at(a.spec.gpus[i].uuid);
    card.ledger.SetGroup(a.group, Guaranteed(a, i), Percent(a, i));
    const auto [request, limit] = Compute(a, i);
    card.arbiter.SetClient(a.group, request, limit);
    weight += Percent(a, i);
  }
  host_.SetGroup(a.group, 0, weight);
  for (const SessionId id : a.sessions) {
    Session& s = *sessions_.at(id);
    if (s.phase != Session::Phase::kServed) continue;
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) SendBudget(s, i);
  }
}

bool Node::ResolveId(const std::string& prefix, std::string* id, std::string* error) const {
  if (by_id_.contains(prefix)) {
    *id = prefix;
    return true;
  }
  std::vector<std::string> found;
  for (auto it = by_id_.lower_bound(prefix); it != by_id_.end() && it->first.starts_with(prefix); ++it)
    found.push_back(it->first);
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
  *error = "id: '" + prefix + "' " + (found.size() < 2 || prefix.empty() ? "is unknown" : "begins several ids") +
           "; accepted: " + (known.empty() ? "none, as nothing is allocated" : known);
  return false;
}

bool Node::CheckSet(const std::string& id, const std::map<std::string, std::string>& change,
                    std::map<std::string, std::string>* live, std::string* error) const {
  const Allocation& a = *by_id_.at(id);
  for (const auto& [name, value] : change) {
    const settings::Key* key = settings::Find(name);
    if (key != nullptr && key->id != settings::Id::kInject && key->id != settings::Id::kVisibleMemory) continue;
    *error = name + (key == nullptr ? ": this key is unknown" : ": cannot change while a container runs") +
             "; accepted: gpu-fraction, gpu-memory, " + settings::LiveNames();
    return false;
  }
  settings::Settings parsed;
  *live = a.live_text;
  for (const auto& [name, value] : change) {
    if (value.empty()) {  // takes away what was set
      if (live->erase(name) > 0) continue;
      std::string set;
      for (const auto& [key, unused] : a.live_text) set += (set.empty() ? "" : ", ") + key;
      *error = name + ": nothing was set that an empty value could take away; set: " + (set.empty() ? "nothing" : set);
      return false;
    }
    *error = settings::Set(parsed, *settings::Find(name), value, name);
    if (!error->empty()) return false;
    if (name == SLUICE_KEY_GPU_FRACTION) live->erase(SLUICE_KEY_GPU_MEMORY);
    if (name == SLUICE_KEY_GPU_MEMORY) live->erase(SLUICE_KEY_GPU_FRACTION);
    (*live)[name] = value;
  }
  if (parsed.gpu_percent && parsed.gpu_memory) {
    *error = settings::Conflicts(parsed, "").front();
    return false;
  }
  Allocation would;  // as it would be
  would.spec = a.spec;
  would.pod = a.pod;
  would.stale = a.stale;
  would.effective = Effective(a, settings::ParseAll(*live, "").settings);
  const auto conflicts = settings::Conflicts(would.effective, "");
  if (!conflicts.empty()) {
    *error = conflicts.front();
    return false;
  }
  // A fraction of each card, or as many whole ones as it has.
  if (parsed.gpu_percent > SLUICE_UNITS_PER_GPU && parsed.gpu_percent != SLUICE_UNITS_PER_GPU * a.spec.gpus.size()) {
    *error = "gpu-fraction: '" + change.at(SLUICE_KEY_GPU_FRACTION) + "' is not accepted; accepted: 0.01 to 1, as " +
             id + " has " + std::to_string(a.spec.gpus.size()) + " GPU(s)";
    return false;
  }
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    const Ledger& ledger = cards_.at(a.spec.gpus[i].uuid)->ledger;
    if (parsed.gpu_memory && *parsed.gpu_memory > ledger.capacity()) {
      *error = "gpu-memory: '" + change.at(SLUICE_KEY_GPU_MEMORY) + "' is not accepted; accepted: at most " +
               settings::FormatQuantity(ledger.capacity() >> 20 << 20) + ", GPU " + a.spec.gpus[i].uuid +
               " less its reserve";
      return false;
    }
    const Bytes others = ledger.guaranteed() - Guaranteed(a, i);
    if (Guaranteed(would, i) <= Guaranteed(a, i) || others + Guaranteed(would, i) <= ledger.capacity()) continue;
    const Bytes left = ledger.capacity() - std::min(others, ledger.capacity());
    const bool bytes = would.effective.gpu_memory.has_value();
    const char* key = bytes ? SLUICE_KEY_GPU_MEMORY : SLUICE_KEY_GPU_FRACTION;
    const auto said = change.find(key);  // or, where what was set is taken away, what then holds
    const std::string value = said != change.end() && !said->second.empty() ? said->second
                              : bytes ? settings::FormatQuantity(*would.effective.gpu_memory)
                                      : settings::FormatFraction(Percent(would, i));
    *error = std::string(key) + ": '" + value + "' is more than GPU " + a.spec.gpus[i].uuid +
             " has left; accepted: at most " +
             (bytes ? settings::FormatQuantity(left >> 20 << 20)
                    : settings::FormatFraction(UnitsIn(left, ledger.capacity())));
    return false;
  }
  return true;
}

void Node::ApplyLive(const std::string& id, const std::map<std::string, std::string>& live) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  it->second->live_text = live;
  it->second->live = settings::ParseAll(live, "").settings;
  Refresh(*it->second);
  dirty_ = true;
}

uint32_t Node::FreeUnits(const std::string& uuid) const {
  uint32_t used = 0;
  Bytes promised = 0;  // memory may have been raised beyond what the units are worth
  for (const auto& [group, a] : allocations_) {
    if ((a->removed || a->stale) && a->sessions.empty()) continue;
    for (size_t i = 0; i < a->spec.gpus.size(); ++i) {
      if (a->spec.gpus[i].uuid != uuid) continue;
      used += Percent(*a, i);
      promised += Guaranteed(*a, i);
    }
  }
  const Bytes capacity = cards_.at(uuid)->ledger.capacity();
  if (used >= SLUICE_UNITS_PER_GPU || promised >= capacity) return 0;
  return std::min(SLUICE_UNITS_PER_GPU - used, UnitsIn(capacity - promised, capacity));
}

std::string Node::Beyond(const std::string& id) const {
  const Allocation& a = *by_id_.at(id);
  for (size_t i = 0; i < a.spec.gpus.size() && !a.spec.tied; ++i) {
    const GpuUnits& g = a.spec.gpus[i];
    const Bytes capacity = cards_.at(g.uuid)->ledger.capacity();
    if (Guaranteed(a, i) <= PercentOf(capacity, g.units)) continue;
    return "this is more than its " + std::to_string(g.units) +
           " units of " SLUICE_RESOURCE
           ": the scheduler may give the others to somebody else, and then every guarantee on GPU " +
           g.uuid + " shrinks in proportion";
  }
  return "";
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

void Node::AddEvent(const std::string& allocation, const std::string& kind, const std::string& text) {
  events_.push_back({next_event_++, 0, allocation, kind, text});
  if (listener_) listener_(events_.back());
  if (events_.size() > kMaxEvents) events_.pop_front();
}

std::vector<Event> Node::EventsAfter(uint64_t number) const {
  std::vector<Event> out;
  for (const Event& e : events_) {
    if (e.number > number) out.push_back(e);
  }
  return out;
}

const Ledger* Node::LedgerOf(const std::string& uuid) const {
  const auto it = cards_.find(uuid);
  return it == cards_.end() ? nullptr : &it->second->ledger;
}

}  // namespace sluice::agent
