#include "deviceplugin/decide/reservations.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/decide/grant.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"
#include "sluice/wire.h"

namespace sluice::deviceplugin {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using scheduler::ContainerKind;

absl::Status Unreadable(std::string_view what) { return absl::DataLossError(StrCat("reservations: ", what)); }

std::string TextOf(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

absl::StatusOr<BoundPod> ParsePod(const Json& json) {
  static const std::map<std::string, ContainerKind> kinds = {
      {"init", ContainerKind::kInit}, {"sidecar", ContainerKind::kSidecar}, {"regular", ContainerKind::kRegular}};
  if (!json.contains("containers") || !json["containers"].is_array())
    return Unreadable("a pod has no array 'containers'");
  BoundPod pod;
  for (const Json& container : json["containers"]) {
    const auto kind = kinds.find(TextOf(container, "kind"));
    if (kind == kinds.end() || !container.contains("units") || !container["units"].is_number_unsigned()) {
      return Unreadable("a container has no kind (init, sidecar, regular) or no units");
    }
    const auto units = container["units"].get<uint64_t>();
    const auto cards = container.value("cards", Json());
    const bool is_split = cards.is_number_unsigned() && cards > 0 && cards <= SLUICE_MAX_GPUS;
    if (units > 0 && units <= 1'000'000) {
      pod.containers.push_back(
          {TextOf(container, "name"), kind->second, static_cast<int>(units), is_split ? cards.get<int>() : 0});
    }
  }
  if (const auto order = json.find("order"); order != json.end() && order->is_number_unsigned()) pod.order = *order;
  if (json.contains("placement")) {
    auto placement = scheduler::ParsePlacement(json["placement"].dump());
    if (!placement.ok()) return Unreadable(StrCat(placement.status().message()));
    pod.placement = *std::move(placement);
  }
  if (const auto grown = json.find("grown"); grown != json.end() && grown->is_object()) {
    for (const auto& [card, units] : grown->items()) {
      if (!units.is_number_integer()) return Unreadable("a card's 'grown' is no whole number");
      const auto value = std::clamp<int64_t>(units.get<int64_t>(), -SLUICE_UNITS_PER_GPU, SLUICE_UNITS_PER_GPU);
      pod.grown[card] = static_cast<int>(value);
    }
  }
  return pod;
}

std::vector<std::string> IdsOnCards(std::span<const std::string> ids, const std::vector<std::string>& cards) {
  std::vector<std::string> out;
  for (const std::string& text : ids) {
    auto id = ParseDeviceId(text);
    if (id.ok() && std::find(cards.begin(), cards.end(), id->uuid) != cards.end()) out.push_back(text);
  }
  return out;
}

std::map<std::string, int> CountByCard(const std::set<std::string>& ids) {
  std::map<std::string, int> out;
  for (const std::string& text : ids) {
    if (auto id = ParseDeviceId(text); id.ok()) ++out[id->uuid];
  }
  return out;
}

}  // namespace

std::vector<std::string> Without(std::span<const std::string> ids, const std::set<std::string>& withheld) {
  std::vector<std::string> out;
  out.reserve(ids.size());
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(out),
               [&](const std::string& id) { return !withheld.contains(id); });
  return out;
}

absl::StatusOr<std::map<std::string, BoundPod>> ParseReservations(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("version", Json()) != 1) return Unreadable("no JSON object of version 1");
  if (!json.contains("pods") || !json["pods"].is_array()) return Unreadable("no array 'pods'");
  std::map<std::string, BoundPod> pods;
  for (const Json& entry : json["pods"]) {
    const std::string uid = TextOf(entry, "uid");
    if (uid.empty()) return Unreadable("a pod has no uid");
    auto pod = ParsePod(entry);
    if (!pod.ok()) return pod.status();
    pods[uid] = *std::move(pod);
  }
  return pods;
}

std::vector<std::string> Reservations::SetPods(std::map<std::string, BoundPod> pods) {
  MutexLock lock(mutex_);
  std::vector<std::string> problems;
  for (const auto& [uid, pod] : pods_) {
    const auto now = pods.find(uid);
    if (now == pods.end() || now->second.placement != pod.placement) tracker_.PodRemoved(uid);
  }
  for (const auto& [uid, pod] : pods) {
    const auto before = pods_.find(uid);
    if (pod.placement.empty() || (before != pods_.end() && before->second.placement == pod.placement)) continue;
    if (auto s = tracker_.PodBound(uid, pod.containers, pod.placement); !s.ok()) {
      problems.push_back(StrCat("pod ", uid, ": ", s.message()));
    }
  }
  pods_ = std::move(pods);
  ApplyCheckpoint();
  changed_.NotifyAll();
  return problems;
}

void Reservations::SetCheckpoint(std::vector<CheckpointEntry> checkpoint) {
  MutexLock lock(mutex_);
  checkpoint_ = std::move(checkpoint);
  ApplyCheckpoint();
}

void Reservations::ApplyCheckpoint() {
  std::map<std::string, scheduler::ContainerCards> cards;
  for (const CheckpointEntry& entry : checkpoint_) {
    for (const auto& [card, units] : CountByCard({entry.device_ids.begin(), entry.device_ids.end()})) {
      cards[entry.pod_uid][entry.container].push_back(card);
    }
  }
  for (const auto& [uid, containers] : cards) {
    const auto pod = pods_.find(uid);
    // Kubelet writes its checkpoint after each container: a pod counts as admitted once all its containers are in it.
    if (pod == pods_.end() || !std::all_of(pod->second.containers.begin(), pod->second.containers.end(),
                                           [&](const auto& each) { return containers.contains(each.name); })) {
      continue;
    }
    tracker_.PodAdmitted(uid, containers);
  }
}

UnitChoice Reservations::Prefer(const UnitRequest& asked, const scheduler::CardPlaces& places,
                                const std::function<std::set<std::string>()>& withheld) {
  const auto end = Clock::now() + max_wait_;
  MutexLock lock(mutex_);
  UnitChoice choice;
  absl::Status status;
  if (asked.must_include.empty()) {
    while (!tracker_.HasUnused(asked.size, asked.cards) && Clock::now() < end) changed_.WaitUntil(mutex_, end);
  }
  const std::vector<std::string> free = Without(asked.available, withheld ? withheld() : std::set<std::string>());
  const UnitRequest request{free, asked.must_include, asked.size, asked.cards};
  std::set<std::string> all(request.available.begin(), request.available.end());
  all.insert(request.must_include.begin(), request.must_include.end());
  const auto must = CountByCard({request.must_include.begin(), request.must_include.end()});
  const auto cards = tracker_.Choose(CountByCard(all), must, request.size, request.cards, places);
  if (cards.ok()) {
    const auto available = IdsOnCards(request.available, *cards);
    choice = ChooseUnits({available, request.must_include, request.size, static_cast<int>(cards->size())}, places);
  }
  if (!choice.fits) {
    choice = ChooseUnits(request, places);
    // Allocate refuses a request that no card can hold with its own message.
    if (choice.fits && !cards.ok()) status = Refusal("reserved", StrCat(cards.status().message()));
    choice.fits = choice.fits && status.ok();
  }
  preferred_ = PreferredUnits{{choice.ids.begin(), choice.ids.end()}, status};
  return choice;
}

std::map<std::string, int> Reservations::FreeUnits(const std::set<std::string>& cards, std::span<const std::string> ids,
                                                   std::map<std::string, int>* held) const {
  std::set<std::string> used;
  for (const CheckpointEntry& entry : checkpoint_) {
    // Kubelet keeps the entry of an ended pod until it needs the units.
    if (pods_.contains(entry.pod_uid)) used.insert(entry.device_ids.begin(), entry.device_ids.end());
  }
  std::map<std::string, int> free;
  const auto used_by_card = CountByCard(used);
  for (const std::string& card : cards) {
    const auto found = used_by_card.find(card);
    free[card] = SLUICE_UNITS_PER_GPU - (found == used_by_card.end() ? 0 : found->second);
  }
  for (const std::string& id : ids) {
    const auto device = ParseDeviceId(id);
    if (!device.ok() || !used.contains(id)) continue;
    ++(*held)[device->uuid];
    ++free[device->uuid];
  }
  return free;
}

absl::Status Reservations::CheckAllocation(std::span<const std::string> ids,
                                           const std::function<Checkpoint()>& read_checkpoint, int split) {
  const std::set<std::string> wanted(ids.begin(), ids.end());
  {
    MutexLock lock(mutex_);
    const auto answer = std::exchange(preferred_, std::nullopt);
    if (answer && answer->ids == wanted) return answer->status;
  }
  auto checkpoint = read_checkpoint();  // file I/O, so without the lock
  MutexLock lock(mutex_);
  if (!checkpoint.ok()) return absl::OkStatus();  // no known reservation is broken
  checkpoint_ = *std::move(checkpoint);
  ApplyCheckpoint();
  // Units of one pod, passed on from its init container: no other pod loses them, whether or not the agent has reported
  // the pod.
  std::map<std::string, std::set<std::string>> by_pod;
  for (const CheckpointEntry& entry : checkpoint_) {
    by_pod[entry.pod_uid].insert(entry.device_ids.begin(), entry.device_ids.end());
  }
  for (const auto& [uid, has] : by_pod) {
    if (std::includes(has.begin(), has.end(), wanted.begin(), wanted.end())) return absl::OkStatus();
  }
  std::set<std::string> cards;
  for (const auto& [card, units] : CountByCard(wanted)) cards.insert(card);
  std::map<std::string, int> held;
  const auto free = FreeUnits(cards, ids, &held);
  const auto chosen = tracker_.Choose(free, held, static_cast<int>(ids.size()), split);
  return chosen.ok() ? absl::OkStatus() : Refusal("reserved", StrCat(chosen.status().message()));
}

}  // namespace sluice::deviceplugin
