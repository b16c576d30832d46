#include "agent/kubernetes/resize.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/settings/settings.h"
#include "scheduler/placement/node_ledger.h"
#include "sluice/names.h"

namespace sluice::agent {
namespace {

using Json = nlohmann::json;
using scheduler::ContainerKind;

constexpr int kWhole = SLUICE_UNITS_PER_GPU;
constexpr uint64_t kMaxRequested = 100'000;  // percent; more is no size of a GPU

// The devices of one container on one GPU.
struct Holding {
  const std::string* container;
  ContainerKind kind;
  std::set<std::string> ids;
};
using PodHoldings = std::map<std::string, std::vector<Holding>>;  // by GPU
using Holdings = std::map<std::string, PodHoldings>;              // by pod uid, of pods that have not ended

std::string GpuOf(const std::string& id) { return id.substr(0, id.find(SLUICE_DEVICE_ID_SEPARATOR)); }

Holdings HoldingsOf(const GivenOut& given, const Pods& pods) {
  Holdings out;
  for (const deviceplugin::CheckpointEntry& entry : given) {
    const auto pod = pods.find(entry.pod_uid);
    if (pod == pods.end() || pod->second.facts.ended) continue;
    ContainerKind kind = ContainerKind::kRegular;
    for (const scheduler::ContainerUnits& c : pod->second.facts.containers) {
      if (c.name == entry.container) kind = c.kind;
    }
    std::map<std::string, std::set<std::string>> ids;
    for (const std::string& id : entry.device_ids) ids[GpuOf(id)].insert(id);
    for (auto& [gpu, of_gpu] : ids) out[entry.pod_uid][gpu].push_back({&entry.container, kind, std::move(of_gpu)});
  }
  return out;
}

bool Share(const Holding& a, const Holding& b) {
  return std::ranges::any_of(a.ids, [&](const std::string& id) { return b.ids.contains(id); });
}

// The units for containers that use the same ones in turn: an init container ends before the others start.
template <typename Size>
int Need(const std::vector<const Holding*>& group, Size size) {
  int init = 0, others = 0;
  for (const Holding* h : group) {
    if (h->kind == ContainerKind::kInit) {
      init = std::max(init, size(*h));
    } else {
      others += size(*h);
    }
  }
  return std::max(init, others);
}

// The pod's grants on one GPU less its units there.
int GrownOf(const std::vector<Holding>& holdings, const std::map<std::string, SizeGrant>* grants) {
  if (grants == nullptr) return 0;
  std::vector<std::vector<const Holding*>> groups;
  for (const Holding& h : holdings) {
    std::vector<const Holding*> joined{&h};
    std::erase_if(groups, [&](const auto& group) {
      const bool joins = std::ranges::any_of(group, [&](const Holding* other) { return Share(h, *other); });
      if (joins) joined.insert(joined.end(), group.begin(), group.end());
      return joins;
    });
    groups.push_back(std::move(joined));
  }
  int grown = 0;
  for (const auto& group : groups) {
    const auto units = [](const Holding& h) { return static_cast<int>(h.ids.size()); };
    grown += Need(group, [&](const Holding& h) {
      const auto grant = grants->find(*h.container);
      return grant == grants->end() ? units(h) : static_cast<int>(grant->second.percent);
    });
    grown -= Need(group, units);
  }
  return grown;
}

const std::map<std::string, SizeGrant>* Find(const SizeGrants& grants, const std::string& pod) {
  const auto found = grants.find(pod);
  return found == grants.end() ? nullptr : &found->second;
}

std::map<std::string, CardUse> Sum(const Holdings& holdings, const SizeGrants& grants) {
  std::map<std::string, CardUse> out;
  for (const auto& [uid, by_gpu] : holdings) {
    for (const auto& [gpu, list] : by_gpu) {
      CardUse& use = out[gpu];
      std::set<std::string> units;  // containers of one pod may hold the same
      for (const Holding& h : list) {
        units.insert(h.ids.begin(), h.ids.end());
        use.holders[uid][*h.container] += static_cast<int>(h.ids.size());
      }
      use.held += static_cast<int>(units.size());
      const int grown = GrownOf(list, Find(grants, uid));
      use.grown += grown;
      if (grown != 0) use.pods[uid] = grown;
    }
  }
  return out;
}

// Units that pods of this node have reserved and kubelet has not given out, by GPU; the extender counts alike.
std::map<std::string, int> ReservedUnits(const std::vector<CardStatus>& cards, const Pods& pods,
                                         const std::map<std::string, CardUse>& uses) {
  std::vector<scheduler::NodeCard> list;
  for (const CardStatus& card : cards) {
    scheduler::NodeCard entry{.uuid = card.uuid, .free = kWhole};
    entry.pods.emplace();
    if (const auto use = uses.find(card.uuid); use != uses.end()) {
      for (const auto& [uid, containers] : use->second.holders) {
        for (const auto& [container, units] : containers) (*entry.pods)[uid].push_back(container);
      }
    }
    list.push_back(std::move(entry));
  }
  scheduler::NodeLedger ledger;
  ledger.SetCards(std::move(list));
  for (const auto& [uid, pod] : pods) {
    if (pod.facts.ended) continue;
    auto live = scheduler::MakeLivePod(pod.facts.containers, pod.facts.placement);
    if (!live.ok()) live = scheduler::MakeLivePod(pod.facts.containers, {});
    if (live.ok()) ledger.Put(uid, {.name = "", .live = *std::move(live), .admitted = pod.facts.admitted});
  }
  std::map<std::string, int> out;
  const scheduler::Node free = ledger.Free();
  for (size_t i = 0; i < free.cards.size(); ++i) out[ledger.cards()[i].uuid] = kWhole - free.cards[i].free;
  return out;
}

uint32_t PercentOf(Bytes bytes, Bytes memory) {
  if (memory == 0) return 0;
  const auto percent = (static_cast<unsigned __int128>(bytes) * kWhole + memory - 1) / memory;
  return static_cast<uint32_t>(std::min<unsigned __int128>(percent, kMaxRequested));
}

Bytes WorthOf(Bytes memory, uint32_t percent) {
  return static_cast<Bytes>(static_cast<unsigned __int128>(memory) * percent / kWhole);
}

// The size that the annotations give the container, and whether it is another one than that of its start.
struct Wish {
  uint32_t percent = 0;
  bool differs = false;
};

Wish WishOf(const PodRecord& pod, const std::string& container, uint32_t units, Bytes memory) {
  const auto found = pod.settings.find(container);
  if (found == pod.settings.end()) return {units, false};
  const settings::Settings& s = found->second;
  // It holds one unit, whatever its size, and no size is granted: nothing is guaranteed for it.
  if (s.priority == settings::Priority::kOpportunistic) return {units, false};
  if (s.gpu_percent) {
    const uint32_t percent = std::min<uint32_t>(*s.gpu_percent, kWhole);  // of several whole GPUs: all of each
    return {percent, percent != units};
  }
  if (!s.gpu_memory || memory == 0) return {units, false};
  const auto start = pod.starts.find(container);
  const bool known = start != pod.starts.end();
  if (known && start->second.bytes == *s.gpu_memory) return {units, false};
  const uint32_t percent = PercentOf(*s.gpu_memory, memory);
  // Units that the user chose beside the bytes are more than these need, and stay.
  return {known && start->second.computed ? percent : std::max(percent, units), known || percent > units};
}

class Granter {
 public:
  Granter(const std::vector<CardStatus>& cards, const GivenOut& given, const Pods& pods, const SizeGrants& before)
      : cards_(cards), pods_(pods), before_(before), holdings_(HoldingsOf(given, pods)) {
    for (const CardStatus& card : cards) memory_[card.uuid] = card.memory;
  }

  SizeGrants Run() {
    for (const auto& [uid, by_gpu] : holdings_) Collect(uid, by_gpu);
    std::vector<SizeGrant*> waiting;
    for (auto& [uid, containers] : grants_) {
      for (auto& [name, grant] : containers) {
        if (grant.IsWaiting()) waiting.push_back(&grant);
      }
    }
    if (!waiting.empty()) Raise(waiting);
    for (auto& [uid, containers] : grants_) {
      for (auto& [name, grant] : containers) Finish(uid, name, grant);
    }
    return std::move(grants_);
  }

 private:
  const SizeGrant* Before(const std::string& uid, const std::string& container) const {
    const auto* pod = Find(before_, uid);
    const auto found = pod == nullptr ? decltype(pod->end()){} : pod->find(container);
    return pod == nullptr || found == pod->end() ? nullptr : &found->second;
  }

  void Collect(const std::string& uid, const PodHoldings& by_gpu) {
    const PodRecord& pod = pods_.at(uid);
    std::map<std::string, SizeGrant> all;
    std::map<std::string, Bytes> smallest;
    for (const auto& [gpu, list] : by_gpu) {
      for (const Holding& h : list) {
        SizeGrant& grant = all[*h.container];
        const auto units = static_cast<uint32_t>(h.ids.size());
        grant.units = grant.gpus.empty() ? units : std::min(grant.units, units);
        grant.gpus.push_back(gpu);
        const auto memory = memory_.find(gpu);
        const Bytes bytes = memory == memory_.end() ? 0 : memory->second;
        smallest[*h.container] = grant.gpus.size() == 1 ? bytes : std::min(smallest[*h.container], bytes);
      }
    }
    for (auto& [name, grant] : all) {
      const SizeGrant* old = Before(uid, name);
      const auto shown = pod.granted.find(name);
      Wish wish = WishOf(pod, name, grant.units, smallest[name]);
      if (!pod.errors.empty()) {  // a wrong annotation changes nothing
        wish = {old != nullptr               ? old->requested
                : shown != pod.granted.end() ? shown->second.requested
                                             : grant.units,
                false};
      }
      if (!wish.differs && old == nullptr && shown == pod.granted.end()) continue;
      grant.requested = wish.percent;
      grant.percent = std::min({wish.percent, grant.units, static_cast<uint32_t>(kWhole)});
      grant.turn = old != nullptr ? old->turn : 0;
      const uint32_t kept = old != nullptr ? old->percent : shown != pod.granted.end() ? shown->second.percent : 0;
      kept_[&(grants_[uid][name] = std::move(grant))] = kept;
    }
  }

  bool Fits(const SizeGrant& grant) const {
    const std::map<std::string, CardUse> uses = Sum(holdings_, grants_);
    return std::ranges::all_of(grant.gpus, [&](const std::string& gpu) {
      const CardUse& use = uses.at(gpu);
      const auto reserved = reserved_.find(gpu);
      return use.held + use.grown + (reserved == reserved_.end() ? 0 : reserved->second) <= kWhole;
    });
  }

  // Raises one grant as far as all of its GPUs have room.
  void RaiseTo(SizeGrant& grant, uint32_t target) {
    uint32_t fits = grant.percent, above = std::min<uint32_t>(target, kWhole) + 1;
    while (above > fits + 1) {
      const uint32_t tried = fits + (above - fits) / 2;
      grant.percent = tried;
      (Fits(grant) ? fits : above) = tried;
    }
    grant.percent = fits;
  }

  void Raise(std::vector<SizeGrant*>& waiting) {
    reserved_ = ReservedUnits(cards_, pods_, Sum(holdings_, grants_));
    uint64_t last = 0;
    for (const auto& [uid, containers] : before_) {
      for (const auto& [name, grant] : containers) last = std::max(last, grant.turn);
    }
    for (SizeGrant* grant : waiting) {
      if (grant->turn == 0) grant->turn = ++last;
    }
    std::ranges::sort(waiting, {}, &SizeGrant::turn);
    for (SizeGrant* grant : waiting) RaiseTo(*grant, std::min(grant->requested, kept_[grant]));
    for (SizeGrant* grant : waiting) RaiseTo(*grant, grant->requested);
  }

  void Finish(const std::string& uid, const std::string& name, SizeGrant& grant) {
    if (!grant.IsWaiting()) grant.turn = 0;
    const PodRecord& pod = pods_.at(uid);
    const auto settings = pod.settings.find(name);
    if (settings == pod.settings.end() || !settings->second.gpu_memory) return;
    Bytes worth = UINT64_MAX;
    for (const std::string& gpu : grant.gpus) worth = std::min(worth, WorthOf(memory_[gpu], grant.percent));
    grant.memory = std::min(settings->second.gpu_memory.value(), worth);
  }

  const std::vector<CardStatus>& cards_;
  const Pods& pods_;
  const SizeGrants& before_;
  const Holdings holdings_;
  std::map<std::string, Bytes> memory_;
  std::map<std::string, int> reserved_;
  std::map<const SizeGrant*, uint32_t> kept_;  // the earlier grant
  SizeGrants grants_;
};

}  // namespace

int CardUse::Free() const { return std::clamp(kWhole - held - std::max(0, grown), 0, kWhole); }

SizeGrants GrantSizes(const std::vector<CardStatus>& cards, const GivenOut& given, const Pods& pods,
                      const SizeGrants& before) {
  return Granter(cards, given, pods, before).Run();
}

std::map<std::string, CardUse> UseOfCards(const GivenOut& given, const Pods& pods, const SizeGrants& grants) {
  return Sum(HoldingsOf(given, pods), grants);
}

std::string FormatGranted(const std::map<std::string, SizeGrant>& grants) {
  Json out = Json::object();
  for (const auto& [container, grant] : grants) {
    Json& entry = out[container] = {{"percent", grant.percent}, {"requested", grant.requested}};
    if (grant.memory) entry["memory"] = *grant.memory;
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::map<std::string, GrantedSize> ParseGranted(const std::string& text) {
  std::map<std::string, GrantedSize> out;
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return out;
  const auto number = [](const Json& entry, const char* name) -> std::optional<uint32_t> {
    const auto found = entry.find(name);
    if (found == entry.end() || !found->is_number_unsigned() || found->get<uint64_t>() > kMaxRequested) return {};
    return found->get<uint32_t>();
  };
  for (const auto& [container, entry] : json.items()) {
    if (!entry.is_object()) continue;
    const auto percent = number(entry, "percent"), requested = number(entry, "requested");
    if (percent && requested) out[container] = {*percent, *requested};
  }
  return out;
}

ResizeText DescribeGrant(const std::string& container, const SizeGrant& grant) {
  const auto share = [](uint32_t percent) { return settings::FormatFraction(percent); };
  const std::string of = grant.gpus.size() == 1 ? " of GPU " + grant.gpus.front()
                                                : " of each of " + std::to_string(grant.gpus.size()) + " GPUs";
  const std::string bytes = grant.memory ? " (" + settings::HumanBytes(*grant.memory) + ")" : "";
  if (!grant.IsWaiting())
    return {false, "container " + container + " has " + share(grant.percent) + of + bytes + " now"};
  if (grant.requested > kWhole && grant.percent == kWhole) {
    return {true, "container " + container + " requests more memory than GPU " + grant.gpus.front() +
                      " has; it has all" + bytes};
  }
  const std::string wanted = grant.requested > kWhole ? "more than the whole" : share(grant.requested);
  return {true,
          "container " + container + " requests " + wanted + of + " and has " + share(grant.percent) + bytes +
              ": the rest is given to other containers or reserved for a pod that starts; it follows when it is free"};
}

}  // namespace sluice::agent
