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
      failures_.try_emplace({why.units, why.only_jointly}, MergedFailure{static_cast<int>(texts_.size())});
  if (added) texts_.emplace_back();
  MergedFailure& merged = found->second;
  merged.largest = std::max(merged.largest, why.largest_free);
  merged.whole = std::max(merged.whole, why.whole_free);
  return merged.index;
}

std::vector<std::string> RefusalReasons::Texts() && {
  for (const auto& [key, merged] : failures_) texts_[merged.index] = Text(key.first, key.second, merged);
  return std::move(texts_);
}

std::string RefusalReasons::Text(const PackingFailure& why) {
  return Text(why.units, why.only_jointly, {0, why.largest_free, why.whole_free});
}

std::string RefusalReasons::Text(int units, bool only_jointly, const MergedFailure& merged) {
  if (only_jointly) {
    return absl::StrCat("each container of the pod finds a card, but not all of them together (", units, " units)");
  }
  if (units > kUnitsPerCard) {
    return absl::StrCat("fewer than ", units / kUnitsPerCard, " whole cards are free, the most on one node is ",
                        merged.whole);
  }
  return absl::StrCat("no single card has ", units, " units free, the largest has ", merged.largest);
}

std::string BlockedBy(const std::string& pod) {
  return absl::StrCat("waits until kubelet has admitted pod ", pod,
                      ": its init container requests the same number of units, its other containers another number");
}

}  // namespace sluice::scheduler
