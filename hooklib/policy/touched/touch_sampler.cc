#include "hooklib/policy/touched/touch_sampler.h"

namespace sluice::policy {

namespace {
using memory::Touch;
constexpr size_t kMaxOperands = 1 << 12;
constexpr uint32_t kMinTried = 4;  // chunks of an operand that speak for it, rather than those of its size
constexpr uint32_t kMinTouched = 3;  // such chunks in operands of one size: others of it are taken to be touched
constexpr double kSuspect = 0.5;
constexpr uint64_t kGranuleBytes = kChunkBytes / 32;
}  // namespace

const TouchSampler::Counts& TouchSampler::CountsOf(Extent operand) const {
  static constexpr Counts kNone;
  const auto own = operands_.find(operand.base);
  if (own != operands_.end() && own->second.tried >= kMinTried) return own->second;
  const auto alike = sizes_.find(operand.bytes);
  return alike != sizes_.end() ? alike->second : kNone;
}

bool TouchSampler::IsSuspect(Extent operand) const {
  const Counts& counts = CountsOf(operand);
  return counts.tried && counts.Probability() < kSuspect;
}

size_t TouchSampler::Allowance(Extent operand, size_t unknown) {
  if (!enabled_ || operand.bytes < kMinOperandBytes || !unknown) return 0;
  auto own = operands_.find(operand.base);
  if (own == operands_.end()) {
    if (operands_.size() >= kMaxOperands) {  // of phases that are long over
      operands_.clear();
      sizes_.clear();
      order_.clear();
    }
    own = operands_.emplace(operand.base, Counts{}).first;
    order_.push_back(operand);
  }
  if (IsSuspect(operand))
    return std::min(unknown, static_cast<size_t>(std::max(0.0, credit_ / CostOf(operand))));
  // One at a time. What was found touched may change, but is looked at ever so rarely.
  if (own->second.pending) return 0;
  const bool is_new = own->second.tried == 0 && !IsTouchedWhole(operand);
  return is_new ? credit_ >= kFaultCost : reserve_ >= kFaultCost;
}

bool TouchSampler::IsTouchedWhole(Extent operand) const {
  const Counts& counts = CountsOf(operand);
  return counts.touched >= kMinTouched && counts.Probability() >= kSuspect;
}

void TouchSampler::Begin(Chunk* chunk, Extent operand) {
  if (IsLeftOut(*chunk)) return;
  chunk->touch = Touch::kTrial;
  chunk->touched_granules = 0;
  ++left_out_;
  ++stats_.trials;
  ++operands_[operand.base].pending;
  const bool from_reserve = IsTouchedWhole(operand) && !IsSuspect(operand);
  const double paid = from_reserve ? kFaultCost : CostOf(operand);
  (from_reserve ? reserve_ : credit_) -= paid;
  trials_[chunk->base] = {.operand = operand, .paid = paid};
}

void TouchSampler::NoteNamed(const Chunk& chunk, Mark mark, uint32_t uses) {
  const auto it = trials_.find(chunk.base);
  if (it == trials_.end() || it->second.uses >= kUses) return;
  it->second.uses += uses;
  it->second.mark = mark;
}

void TouchSampler::Count(Extent operand, bool is_touched) {
  for (Counts* const counts : {&operands_[operand.base], &sizes_[operand.bytes]}) {
    ++counts->tried;
    counts->touched += is_touched;
  }
  uint32_t& pending = operands_[operand.base].pending;
  pending -= pending != 0;
}

bool TouchSampler::NoteFault(Chunk* chunk, Va page, uint64_t now) {
  const bool was_left_out = IsLeftOut(*chunk);
  chunk->touched_granules |= uint32_t{1} << ((page - chunk->base) / kGranuleBytes);
  chunk->touched_at = now;
  if (chunk->touch == Touch::kTrial) {
    const auto it = trials_.find(chunk->base);
    if (it != trials_.end()) {
      Count(it->second.operand, true);
      credit_ -= kFaultCost - it->second.paid;
      trials_.erase(it);
    }
    ++stats_.touched;
  } else if (chunk->touch == Touch::kUntouched) {
    ++stats_.late;
  }
  if (was_left_out) --left_out_;
  chunk->touch = Touch::kTouched;
  return was_left_out;
}

void TouchSampler::Conclude(ChunkTable* chunks, bool lost) {
  for (auto it = trials_.begin(); it != trials_.end();) {
    Trial& trial = it->second;
    if (!trial.is_over) {
      ++it;
    } else if (lost) {
      trial.is_over = false;
      trial.uses = 0;
      ++it;
    } else {
      credit_ = std::min(kMaxCredit, credit_ + trial.paid + kSuccessGain);
      if (Chunk* const chunk = chunks->Find(it->first)) NoteUntouched(chunk, trial.operand);
      it = trials_.erase(it);
    }
  }
}

void TouchSampler::NoteUntouched(Chunk* chunk, Extent operand) {
  chunk->touch = Touch::kUntouched;  // it stays left out
  Count(operand, false);
  ++stats_.untouched;
}

void TouchSampler::ForgetKnown(Chunk* chunk) {
  if (IsLeftOut(*chunk)) --left_out_;
  if (chunk->touch == Touch::kTrial) {
    const auto it = trials_.find(chunk->base);
    if (it != trials_.end()) {
      uint32_t& pending = operands_[it->second.operand.base].pending;
      pending -= pending != 0;
      trials_.erase(it);
    }
  }
  chunk->touch = Touch::kUnknown;
  chunk->touched_granules = 0;
}

void TouchSampler::RemoveArena(Extent arena) {
  const auto inside = [&arena](Va va) { return va - arena.base < arena.bytes; };
  std::erase_if(trials_, [&](const auto& trial) { return inside(trial.first); });
  std::erase_if(operands_, [&](const auto& operand) { return inside(operand.first); });
  std::erase_if(order_, [&](const Extent& operand) { return inside(operand.base); });
}

}  // namespace sluice::policy
