#include "deviceplugin/decide/waiting_requests.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/decide/grant.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

using Clock = std::chrono::steady_clock;

// Whether a part of each of several cards may add up to so many units.
bool MayBeSplit(int size, int node_cards) {
  for (int cards = 2; cards <= node_cards; ++cards) {
    if (size % cards == 0 && size < cards * SLUICE_UNITS_PER_GPU) return true;
  }
  return false;
}

int CountCards(std::span<const std::string> ids) {
  std::set<std::string> cards;
  for (const std::string& text : ids) {
    if (auto id = ParseDeviceId(text); id.ok()) cards.insert(id->uuid);
  }
  return static_cast<int>(cards.size());
}

std::vector<std::string> Sorted(std::span<const std::string> ids) {
  std::vector<std::string> out(ids.begin(), ids.end());
  std::sort(out.begin(), out.end());
  return out;
}

std::string Describe(int units, int cards) {
  return cards == 1 ? StrCat(units, " percent of one GPU")
                    : StrCat(units / cards, " percent of each of ", cards, " GPUs");
}

}  // namespace

void WaitingRequests::SetPods(const std::map<std::string, BoundPod>& pods) {
  MutexLock lock(mutex_);
  has_agent_ = true;
  std::map<std::string, Pod> now;
  for (const auto& [uid, bound] : pods) {
    Pod& pod = now[uid];
    pod.order = bound.order;
    pod.containers = bound.containers;
    if (const auto before = pods_.find(uid); before != pods_.end()) pod.asked = std::move(before->second.asked);
  }
  pods_ = std::move(now);
  changed_.NotifyAll();
}

void WaitingRequests::SetCheckpoint(const std::vector<CheckpointEntry>& checkpoint) {
  MutexLock lock(mutex_);
  Apply(checkpoint);
}

void WaitingRequests::Apply(const std::vector<CheckpointEntry>& checkpoint) {
  given_.clear();
  for (const CheckpointEntry& entry : checkpoint) given_[entry.pod_uid].insert(entry.container);
}

std::vector<WaitingRequests::Candidate> WaitingRequests::Find(int size, Rule rule) const {
  std::vector<Candidate> out;
  for (const auto& [uid, pod] : pods_) {
    const auto given = given_.find(uid);
    const bool has_given = given != given_.end();
    const auto next = std::ranges::find_if(pod.containers, [&](const scheduler::ContainerUnits& c) {
      const bool has_units = has_given && given->second.contains(c.name);
      return !has_units && (rule != Rule::kLoose || !pod.asked.contains(c.name));
    });
    if (next == pod.containers.end() || next->units != size) continue;
    if (rule != Rule::kExact || !pod.asked.contains(next->name)) out.push_back({pod.order, uid, &*next});
  }
  std::ranges::sort(out, {}, [](const Candidate& c) { return std::tuple(c.order, c.uid); });
  return out;
}

int WaitingRequests::Take(const std::vector<Candidate>& candidates) {
  if (candidates.empty()) return 0;
  const Candidate& first = candidates.front();
  pods_.at(first.uid).asked.insert(first.container->name);
  return first.container->Cards();
}

int WaitingRequests::Next(int size, Rule rule) {
  const auto first_time = Find(size, rule);
  // Kubelet asks twice for a pod only after its own restart.
  return Take(first_time.empty() ? Find(size, Rule::kAgain) : first_time);
}

bool WaitingRequests::HasSplit(int size) const {
  return std::ranges::any_of(pods_, [&](const auto& pod) {
    return std::ranges::any_of(pod.second.containers,
                               [&](const scheduler::ContainerUnits& c) { return c.units == size && c.IsSplit(); });
  });
}

int WaitingRequests::CardsFor(int size, int node_cards, const std::function<Checkpoint()>& read_checkpoint) {
  const auto end = Clock::now() + max_wait_;
  const bool may_wait = MayBeSplit(size, node_cards);
  {
    MutexLock lock(mutex_);
    answer_.reset();
    if (!has_agent_) return 0;
    while (may_wait && Find(size, Rule::kLoose).empty() && Clock::now() < end) changed_.WaitUntil(mutex_, end);
    if (!HasSplit(size)) return Next(size, Rule::kLoose);
  }
  // The watch of the checkpoint may be late. Kubelet writes it only between its calls.
  const Checkpoint checkpoint = read_checkpoint();
  MutexLock lock(mutex_);
  if (!checkpoint.ok()) return Next(size, Rule::kLoose);
  Apply(*checkpoint);
  while (may_wait && Find(size, Rule::kExact).empty() && Clock::now() < end) changed_.WaitUntil(mutex_, end);
  return Next(size, Rule::kExact);
}

void WaitingRequests::SetAnswer(std::vector<std::string> ids, int cards) {
  std::sort(ids.begin(), ids.end());
  MutexLock lock(mutex_);
  answer_ = Answer{std::move(ids), cards};
}

int WaitingRequests::CardsOf(std::span<const std::string> ids, const std::function<Checkpoint()>& read_checkpoint) {
  const std::vector<std::string> wanted = Sorted(ids);
  {
    MutexLock lock(mutex_);
    const auto answer = std::exchange(answer_, std::nullopt);
    // With other devices than preferred it is still the same request: kubelet allocates right after it asked.
    if (answer && answer->ids.size() == wanted.size()) return answer->cards;
    if (!has_agent_) return 0;
  }
  const Checkpoint checkpoint = read_checkpoint();  // file I/O, so without the lock
  MutexLock lock(mutex_);
  if (checkpoint.ok()) {
    Apply(*checkpoint);
    for (const CheckpointEntry& entry : *checkpoint) {
      const auto pod = pods_.find(entry.pod_uid);
      if (pod == pods_.end() || !std::ranges::includes(Sorted(entry.device_ids), wanted)) continue;
      // An init container's units, which pass to the next container of the pod.
      for (const Candidate& candidate : Find(static_cast<int>(wanted.size()), Rule::kExact)) {
        if (candidate.uid == entry.pod_uid) return Take({candidate});
      }
    }
  }
  return Next(static_cast<int>(wanted.size()), checkpoint.ok() ? Rule::kExact : Rule::kLoose);
}

absl::Status WaitingRequests::CheckStart(std::span<const std::string> ids, const Checkpoint& checkpoint) const {
  if (!checkpoint.ok()) return absl::OkStatus();
  const std::vector<std::string> wanted = Sorted(ids);
  const int cards = CountCards(ids);
  MutexLock lock(mutex_);
  for (const CheckpointEntry& entry : *checkpoint) {
    const auto pod = pods_.find(entry.pod_uid);
    if (pod == pods_.end() || Sorted(entry.device_ids) != wanted) continue;
    for (const scheduler::ContainerUnits& c : pod->second.containers) {
      if (c.name != entry.container || c.units != static_cast<int>(ids.size()) || c.Cards() == cards) continue;
      return Refusal("split", StrCat("container ", c.name, " requests ", Describe(c.units, c.Cards()),
                                     " and was given ", c.units, " units on ", cards, cards == 1 ? " GPU" : " GPUs",
                                     ": another pod with as many units started at the same moment, or the node agent "
                                     "was not running. Delete the pod so that it is placed again"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::deviceplugin
