#include "agent/kubernetes/facts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "agent/kubernetes/resize.h"
#include "sluice/names.h"
#include "webhook/decision/marker.h"
#include "webhook/decision/pod.h"
#include "webhook/decision/requested_shares.h"
#include "webhook/decision/resize.h"

namespace sluice::agent {
namespace {

using Json = nlohmann::json;
using scheduler::ContainerKind;

const char* Word(ContainerKind kind) {
  switch (kind) {
    case ContainerKind::kInit:
      return "init";
    case ContainerKind::kSidecar:
      return "sidecar";
    case ContainerKind::kRegular:
      return "regular";
  }
  return "";
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

PodRecord ReadPodRecord(const Json& pod, bool aliases) {
  PodRecord out;
  out.facts = scheduler::ReadPod(pod);
  if (const Json* metadata = webhook::Member(pod, "metadata")) {
    out.created = webhook::Text(*metadata, "creationTimestamp");
  }
  const webhook::PodView view = webhook::ViewPod(pod);
  if (!view.error.empty()) return out;
  webhook::Config config;
  config.aliases = aliases;
  const webhook::Input input{pod, out.facts.name_space, config, webhook::Nodes{}, webhook::Mode::kUpdate};
  webhook::Decision decision;
  webhook::Findings findings(decision, input.off);
  for (const webhook::RequestedShare& requested : webhook::ResolveShares(view, input, findings).containers) {
    out.settings[requested.container->name] = requested.settings;
    if (std::string problem = webhook::ResizeProblem(requested); !problem.empty()) {
      out.errors.push_back(std::move(problem));
    }
  }
  for (const webhook::Finding& finding : decision.denials) out.errors.push_back(finding.text);
  const webhook::Marker marker = webhook::ReadMarker(view);
  for (const auto& [container, settings] : out.settings) {
    if (marker.Has(container)) out.starts[container] = {marker.Bytes(container), marker.IsComputed(container)};
  }
  if (view.annotations != nullptr) out.granted_text = webhook::Text(*view.annotations, webhook::kGrantedField);
  out.granted = ParseGranted(out.granted_text);
  return out;
}

void NumberPods(const Pods& before, uint64_t* last, Pods* now) {
  std::vector<PodRecord*> fresh;
  for (auto& [uid, pod] : *now) {
    if (const auto known = before.find(uid); known != before.end()) {
      pod.order = known->second.order;
    } else {
      fresh.push_back(&pod);
    }
  }
  std::ranges::stable_sort(fresh, {}, &PodRecord::created);  // RFC 3339 in UTC: sorted as text
  for (PodRecord* pod : fresh) pod->order = ++*last;
}

PluginCards ReadPluginState(const std::string& text) {
  PluginCards out;
  const Json state = Json::parse(text, nullptr, false);
  if (!state.is_object() || !state.contains("cards") || !state["cards"].is_array()) return out;
  for (const Json& card : state["cards"]) {
    const std::string uuid(webhook::Text(card, "uuid"));
    if (uuid.empty()) continue;
    const Json* nvlink = webhook::Member(card, "nvlink");
    out[uuid] = {std::string(webhook::Text(card, "state")), std::string(webhook::Text(card, "detail")),
                 nvlink != nullptr && nvlink->is_number_integer() ? nvlink->get<int>() : -1};
  }
  return out;
}

std::string OfferProblem(const std::string& text) {
  const Json state = Json::parse(text, nullptr, false);
  if (!state.is_object()) return "";
  // A node without GPUs has no NVML either, and nothing is wrong with it.
  const auto gpus = state.find("pciGpus");
  std::string out;
  if (gpus != state.end() && gpus->is_number_integer() && gpus->get<int64_t>() > 0)
    out = webhook::Text(state, "problem");
  for (const auto& [uuid, card] : ReadPluginState(text)) {
    if (card.state == "healthy" || card.detail.empty()) continue;
    if (!out.empty()) out += "; ";
    out += "GPU " + uuid + ": ";
    out += card.detail;
  }
  return out;
}

std::string NodeAnnotation(const std::vector<CardStatus>& cards, const std::map<std::string, CardUse>& uses,
                           const PluginCards& plugin) {
  Json out = Json::array();
  for (const CardStatus& card : cards) {  // ordered by uuid
    const auto found = uses.find(card.uuid);
    const CardUse use = found == uses.end() ? CardUse() : found->second;
    const auto state = plugin.find(card.uuid);
    const bool offered = state == plugin.end() || state->second.state == "healthy";
    out.push_back({{"uuid", card.uuid},
                   {"model", card.model},
                   {"memory", card.memory},
                   {"free", offered ? use.Free() : 0},
                   {"numa", card.numa},
                   {"pods", use.holders}});
    if (state != plugin.end() && state->second.nvlink >= 0) out.back()["nvlink"] = state->second.nvlink;
  }
  return Dump(out);
}

std::string Reservations(const Pods& pods, const std::map<std::string, CardUse>& uses) {
  Json list = Json::array();
  for (const auto& [uid, pod] : pods) {
    if (pod.facts.ended || pod.facts.containers.empty()) continue;
    Json containers = Json::array();
    for (const scheduler::ContainerUnits& c : pod.facts.containers) {
      if (c.units <= 0) continue;
      containers.push_back({{"name", c.name}, {"kind", Word(c.kind)}, {"units", c.units}});
      if (c.cards > 0) containers.back()["cards"] = c.cards;
    }
    Json entry = {{"uid", uid}, {"containers", std::move(containers)}};
    if (pod.order > 0) entry["order"] = pod.order;
    if (!pod.facts.placement.empty()) entry["placement"] = pod.facts.placement;
    for (const auto& [gpu, use] : uses) {
      if (const auto grown = use.pods.find(uid); grown != use.pods.end()) entry["grown"][gpu] = grown->second;
    }
    list.push_back(std::move(entry));
  }
  return Dump({{"version", 1}, {"pods", std::move(list)}}) + "\n";
}

std::string AllocationOf(const deviceplugin::CheckpointEntry& given) {
  return given.run_dir.substr(given.run_dir.rfind('/') + 1);  // npos + 1: the whole
}

}  // namespace sluice::agent
