#include "hooklib/policy/touched/companions.h"

#include <algorithm>

namespace sluice::policy {

namespace {
constexpr uint64_t kMaxGapLaunches = 32;  // between two faults of one group
constexpr size_t kMaxGroup = 1024, kMaxChunks = size_t{1} << 16, kMaxOperands = 1 << 12;
}  // namespace

void Companions::NoteOperand(Extent operand) {
  if (operands_.size() >= kMaxOperands) operands_.clear();
  operands_[operand.base] = operand.bytes;
}

void Companions::NoteFault(Va chunk, uint64_t now) {
  if (group_of_.size() >= kMaxChunks) {
    group_of_.clear();
    groups_.clear();
  }
  const bool follows = is_open_ && now <= last_fault_at_ + kMaxGapLaunches && groups_[newest_].size() < kMaxGroup;
  last_fault_at_ = now;
  is_open_ = true;
  if (!follows) ++newest_;
  // The group that it was of has returned with it, and stays as it is.
  if (!group_of_.try_emplace(chunk, newest_).second) return;
  groups_[newest_].push_back(chunk);
}

std::vector<Va> Companions::GroupOf(Va chunk) const {
  const auto group = group_of_.find(chunk);
  if (group == group_of_.end()) return {};
  const auto chunks = groups_.find(group->second);
  return chunks != groups_.end() ? chunks->second : std::vector<Va>{};
}

std::vector<Va> Companions::AlikeOf(Va chunk) const {
  std::vector<Va> alike;
  auto own = operands_.upper_bound(chunk);
  if (own == operands_.begin()) return alike;
  --own;
  const uint64_t offset = chunk - own->first;
  if (offset >= own->second) return alike;
  for (const auto& [base, bytes] : operands_) {
    if (bytes == own->second && base != own->first) alike.push_back(RoundDown(base + offset, kChunkBytes));
  }
  return alike;
}

void Companions::RemoveArena(Extent arena) {
  const auto is_inside = [&](Va address) { return address - arena.base < arena.bytes; };
  std::erase_if(operands_, [&](const auto& operand) { return is_inside(operand.first); });
  std::erase_if(group_of_, [&](const auto& member) { return is_inside(member.first); });
  for (auto& [group, chunks] : groups_) std::erase_if(chunks, is_inside);
  std::erase_if(groups_, [](const auto& group) { return group.second.empty(); });
}

}  // namespace sluice::policy
