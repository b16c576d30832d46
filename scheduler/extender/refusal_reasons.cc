#include "scheduler/extender/refusal_reasons.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::scheduler {

int RefusalReasons::IndexOf(const std::string& text) {
  const auto [found, added] = index_by_text_.try_emplace(text, static_cast<int>(texts_.size()));
  if (added) texts_.push_back(text);
  return found->second;
}

int RefusalReasons::IndexOfFailure(const PackingFailure& why) {
  const auto [found, added] =
      failures_.try_emplace({why.units, why.cards, why.only_jointly}, MergedFailure{static_cast<int>(texts_.size())});
  if (added) texts_.emplace_back();
  MergedFailure& merged = found->second;
  merged.largest = std::max(merged.largest, why.largest_free);
  merged.with_room = std::max(merged.with_room, why.cards_with_room);
  return merged.index;
}

std::vector<std::string> RefusalReasons::Texts() && {
  for (const auto& [key, merged] : failures_) texts_[merged.index] = Text(key, merged);
  return std::move(texts_);
}

std::string RefusalReasons::Text(const PackingFailure& why) {
  return Text({why.units, why.cards, why.only_jointly}, {0, why.largest_free, why.cards_with_room});
}

std::string RefusalReasons::Text(const FailureKey& key, const MergedFailure& merged) {
  const auto [units, cards, only_jointly] = key;
  if (only_jointly) {
    return absl::StrCat("each container of the pod finds a card, but not all of them together (", units, " units)");
  }
  if (cards > 1 && units < cards * kUnitsPerCard) {
    return absl::StrCat("fewer than ", cards, " cards have ", units / cards,
                        " units free each, the most on one node is ", merged.with_room);
  }
  if (cards > 1) {
    return absl::StrCat("fewer than ", cards, " whole cards are free, the most on one node is ", merged.with_room);
  }
  return absl::StrCat("no single card has ", units, " units free, the largest has ", merged.largest);
}

std::string BlockedBy(const std::string& pod) {
  return absl::StrCat("waits until kubelet has admitted pod ", pod,
                      ": one of its containers requests the same number of units, and then others or on another "
                      "number of cards; kubelet does not say for which pod it asks");
}

}  // namespace sluice::scheduler
