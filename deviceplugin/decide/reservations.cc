#include "deviceplugin/decide/reservations.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/decide/grant.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

using Json = nlohmann::json;
using scheduler::ContainerKind;

absl::Status Odd(std::string_view what) { return absl::DataLossError(StrCat("reservations: ", what)); }

std::string TextOf(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

absl::StatusOr<ToldPod> ParsePod(const Json& json) {
  static const std::map<std::string, ContainerKind> kinds = {
      {"init", ContainerKind::kInit}, {"sidecar", ContainerKind::kSidecar}, {"regular", ContainerKind::kRegular}};
  if (!json.contains("containers") || !json["containers"].is_array()) return Odd("a pod has no array 'containers'");
  ToldPod pod;
  for (const Json& container : json["containers"]) {
    const auto kind = kinds.find(TextOf(container, "kind"));
    if (kind == kinds.end() || !container.contains("units") || !container["units"].is_number_unsigned()) {
      return Odd("a container has no kind (init, sidecar, regular) or no units");
    }
    const auto units = container["units"].get<uint64_t>();
    if (units > 0 && units <= 1'000'000) {
      pod.containers.push_back({TextOf(container, "name"), kind->second, static_cast<int>(units)});
    }
  }
  if (json.contains("placement")) {
    auto placement = scheduler::ParsePlacement(json["placement"].dump());
    if (!placement.ok()) return Odd(StrCat(placement.status().message()));
    pod.placement = *std::move(placement);
  }
  return pod;
}

bool PlainRequest(int size) { return size <= SLUICE_UNITS_PER_GPU || size % SLUICE_UNITS_PER_GPU == 0; }

std::vector<std::string> OnCards(std::span<const std::string> ids, const std::vector<std::string>& cards) {
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

absl::StatusOr<std::map<std::string, ToldPod>> ParseReservations(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("version", Json()) != 1) return Odd("no JSON object of version 1");
  if (!json.contains("pods") || !json["pods"].is_array()) return Odd("no array 'pods'");
  std::map<std::string, ToldPod> pods;
  for (const Json& entry : json["pods"]) {
    const std::string uid = TextOf(entry, "uid");
    if (uid.empty()) return Odd("a pod has no uid");
    auto pod = ParsePod(entry);
    if (!pod.ok()) return pod.status();
    pods[uid] = *std::move(pod);
  }
  return pods;
}

std::vector<std::string> Reservations::Told(std::map<std::string, ToldPod> pods) {
  std::lock_guard lock(mutex_);
  std::vector<std::string> problems;
  for (const auto& [uid, pod] : told_) {
    const auto now = pods.find(uid);
    if (now == pods.end() || now->second.placement != pod.placement) keeper_.Gone(uid);
  }
  for (const auto& [uid, pod] : pods) {
    const auto before = told_.find(uid);
    if (pod.placement.empty() || (before != told_.end() && before->second.placement == pod.placement)) continue;
    if (auto s = keeper_.Bound(uid, pod.containers, pod.placement); !s.ok()) {
      problems.push_back(StrCat("pod ", uid, ": ", s.message()));
    }
  }
  told_ = std::move(pods);
  Settle();
  changed_.notify_all();
  return problems;
}

void Reservations::Given(std::vector<GivenOut> checkpoint) {
  std::lock_guard lock(mutex_);
  given_ = std::move(checkpoint);
  Settle();
}

void Reservations::Settle() {
  std::map<std::string, scheduler::ContainerCards> cards;
  for (const GivenOut& given : given_) {
    for (const auto& [card, units] : CountByCard({given.device_ids.begin(), given.device_ids.end()})) {
      cards[given.pod_uid][given.container].push_back(card);
    }
  }
  for (const auto& [uid, containers] : cards) {
    const auto pod = told_.find(uid);
    // Kubelet writes its checkpoint after each container: a pod is settled when it has all.
    if (pod == told_.end() || !std::all_of(pod->second.containers.begin(), pod->second.containers.end(),
                                           [&](const auto& each) { return containers.contains(each.name); })) {
      continue;
    }
    keeper_.Admitted(uid, containers);
  }
}

Pack Reservations::Prefer(const PackRequest& request, const std::map<std::string, int>& numa) {
  std::unique_lock lock(mutex_);
  Pack pack;
  absl::Status status;
  if (request.must_include.empty()) {
    changed_.wait_for(lock, patience_, [&] { return keeper_.Waits(request.size); });
  }
  std::set<std::string> all(request.available.begin(), request.available.end());
  all.insert(request.must_include.begin(), request.must_include.end());
  const auto must = CountByCard({request.must_include.begin(), request.must_include.end()});
  const auto cards = keeper_.Choose(CountByCard(all), must, request.size);
  if (cards.ok() && PlainRequest(request.size)) {
    const auto available = OnCards(request.available, *cards);
    pack = ChooseUnits({available, request.must_include, request.size}, numa);
  }
  if (!pack.fits) {
    pack = ChooseUnits(request, numa);
    // What no card can hold Allocate refuses anyhow, in words of its own.
    if (pack.fits && !cards.ok()) status = Refusal("reserved", StrCat(cards.status().message()));
    pack.fits = pack.fits && status.ok();
  }
  answer_ = Answer{{pack.ids.begin(), pack.ids.end()}, status};
  return pack;
}

std::map<std::string, int> Reservations::FreeOf(const std::set<std::string>& cards, std::span<const std::string> ids,
                                                std::map<std::string, int>* held) const {
  std::set<std::string> used;
  for (const GivenOut& given : given_) {
    // Kubelet's entry of a pod that has ended stays until it needs the units.
    if (told_.contains(given.pod_uid)) used.insert(given.device_ids.begin(), given.device_ids.end());
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

absl::Status Reservations::MayAllocate(std::span<const std::string> ids,
                                       const std::function<Checkpoint()>& read_checkpoint) {
  std::unique_lock lock(mutex_);
  const std::set<std::string> wanted(ids.begin(), ids.end());
  const auto answer = std::exchange(answer_, std::nullopt);
  if (answer && answer->ids == wanted) return answer->status;
  lock.unlock();
  auto checkpoint = read_checkpoint();
  lock.lock();
  if (!checkpoint.ok()) return absl::OkStatus();  // nothing is known that it would break
  given_ = *std::move(checkpoint);
  Settle();
  // An init container's units, passed on: nobody loses them, whether the agent has told of the pod yet or not.
  std::map<std::string, std::set<std::string>> by_pod;
  for (const GivenOut& given : given_) {
    by_pod[given.pod_uid].insert(given.device_ids.begin(), given.device_ids.end());
  }
  for (const auto& [uid, has] : by_pod) {
    if (std::includes(has.begin(), has.end(), wanted.begin(), wanted.end())) return absl::OkStatus();
  }
  std::set<std::string> cards;
  for (const auto& [card, units] : CountByCard(wanted)) cards.insert(card);
  std::map<std::string, int> held;
  const auto free = FreeOf(cards, ids, &held);
  const auto chosen = keeper_.Choose(free, held, static_cast<int>(ids.size()));
  return chosen.ok() ? absl::OkStatus() : Refusal("reserved", StrCat(chosen.status().message()));
}

}  // namespace sluice::deviceplugin
