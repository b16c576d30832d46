// Node: the settings of allocations, and the shares that follow from them.
#include <algorithm>

#include "agent/node_private.h"

namespace sluice::agent {

settings::Settings Node::Effective(const Allocation& a, const settings::Settings& live) const {
  settings::Settings out = a.spec.settings;
  if (a.pod) {
    settings::Settings annotated = a.pod->settings;
    // An opportunistic container has one unit, whatever its size, and no guarantee that its size could exceed.
    const bool is_guaranteed = annotated.priority != settings::Priority::kOpportunistic;
    if (is_guaranteed) {
      annotated.gpu_percent.reset();
      if (!annotated.gpu_memory) annotated.gpu_percent = a.pod->percent;
    }
    const auto card = cards_.find(a.spec.gpus.front().uuid);
    if (is_guaranteed && card != cards_.end()) {
      const uint32_t percent = a.pod->percent.value_or(a.spec.gpus.front().units);
      const Bytes worth = PercentOf(card->second->card.memory, percent);
      if (annotated.gpu_memory) annotated.gpu_memory = std::min(*annotated.gpu_memory, worth);
    }
    settings::Layer(out, annotated);
  }
  const std::string pod = a.pod ? a.pod->pod : a.spec.pod;
  const std::string path =
      a.pod ? a.pod->ns + "/" + pod + "/" + a.pod->container : a.spec.ns + "/" + pod + "/" + a.spec.container;
  for (const ClientRule& rule : config_.clients) {
    if (Matches(rule.id, a.spec.id) || (!pod.empty() && Matches(rule.id, path))) settings::Layer(out, rule.settings);
  }
  settings::Layer(out, live);
  return out;
}

Bytes Node::Guaranteed(const Allocation& a, size_t gpu) const { return IsOpportunistic(a) ? 0 : Size(a, gpu); }

Bytes Node::Size(const Allocation& a, size_t gpu) const {
  const GpuUnits& g = a.spec.gpus[gpu];
  const auto card = cards_.find(g.uuid);
  if (card == cards_.end() || a.stale) return 0;
  const Bytes capacity = card->second->ledger.capacity();
  if (a.effective.gpu_memory) return std::min(*a.effective.gpu_memory, capacity);
  return PercentOf(capacity, Percent(a, gpu));
}

uint32_t Node::Percent(const Allocation& a, size_t gpu) const {
  // The scheduler gave the units; a fraction counts where it was changed since.
  if (a.effective.gpu_percent && a.effective.gpu_percent != a.spec.settings.gpu_percent) {
    return std::min<uint32_t>(*a.effective.gpu_percent, SLUICE_UNITS_PER_GPU);
  }
  if (a.pod && a.pod->percent) return *a.pod->percent;
  return a.spec.gpus[gpu].units;
}

std::pair<uint32_t, uint32_t> Node::Compute(const Allocation& a, size_t gpu) const {
  const uint32_t limit = a.effective.compute_limit.value_or(1000000);
  if (IsOpportunistic(a)) return {0, limit};
  return {a.effective.compute_request.value_or(std::min(Percent(a, gpu) * 10000, limit)), limit};
}

Arbiter::Policy Node::TokenPolicy() const {
  return {.window = config_.window_ms * kMs,
          .quantum_min = config_.quantum_min_us * 1000ull,
          .quantum_max = config_.quantum_max_us * 1000ull,
          .lease_factor = config_.lease_factor,
          .pressure_window = config_.pressure_window_ms * kMs};
}

bool Node::CheckSet(const std::string& id, const std::map<std::string, std::string>& change,
                    std::map<std::string, std::string>* live, std::string* error) const {
  const Allocation& a = *by_id_.at(id);
  for (const auto& [name, value] : change) {
    const settings::Key* key = settings::Find(name);
    if (key != nullptr && key->settable) continue;
    *error = name + (key == nullptr ? ": this key is unknown" : ": cannot change while a container runs") +
             "; accepted: " + settings::SettableNames();
    return false;
  }
  settings::Settings parsed;
  *live = a.live_text;
  for (const auto& [name, value] : change) {
    if (value.empty()) {
      if (live->erase(name) > 0) continue;
      std::string set;
      for (const auto& [key, unused] : a.live_text) set += (set.empty() ? "" : ", ") + key;
      *error =
          name + ": an empty value removes a setting, and this one is not set; set: " + (set.empty() ? "none" : set);
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
  Allocation changed;  // the allocation as it would be
  changed.spec = a.spec;
  changed.pod = a.pod;
  changed.stale = a.stale;
  changed.effective = Effective(a, settings::ParseAll(*live, "").settings);
  const auto conflicts = settings::Conflicts(changed.effective, "");
  if (!conflicts.empty()) {
    *error = conflicts.front();
    return false;
  }
  // A fraction of each GPU, or the number of the allocation's GPUs.
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
    if (Guaranteed(changed, i) <= Guaranteed(a, i) || others + Guaranteed(changed, i) <= ledger.capacity()) continue;
    const Bytes left = ledger.capacity() - std::min(others, ledger.capacity());
    const bool bytes = changed.effective.gpu_memory.has_value();
    const char* key = bytes ? SLUICE_KEY_GPU_MEMORY : SLUICE_KEY_GPU_FRACTION;
    const auto given = change.find(key);  // or, where a setting is removed, the value that then holds
    const std::string value = given != change.end() && !given->second.empty() ? given->second
                              : bytes ? settings::FormatQuantity(*changed.effective.gpu_memory)
                                      : settings::FormatFraction(Percent(changed, i));
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

std::string Node::ExcessNote(const std::string& id) const {
  const Allocation& a = *by_id_.at(id);
  for (size_t i = 0; i < a.spec.gpus.size() && !a.spec.tied; ++i) {
    const GpuUnits& g = a.spec.gpus[i];
    const Bytes capacity = cards_.at(g.uuid)->ledger.capacity();
    const uint32_t known = std::max(g.units, a.pod ? a.pod->percent.value_or(0) : 0);  // to the scheduler
    if (Guaranteed(a, i) <= PercentOf(capacity, known)) continue;
    return "this is more than its " + std::to_string(g.units) +
           " units of " SLUICE_RESOURCE
           ": the scheduler may give the other units to another pod, and then every guarantee on GPU " +
           g.uuid + " shrinks in proportion";
  }
  return "";
}

}  // namespace sluice::agent
