#include "hooklib/policy/touched/touch_sampler.h"

namespace sluice::policy {

namespace {
using memory::Touch;
constexpr size_t kMaxOperands = 1 << 12;
constexpr double kPriorChunks = 4;
constexpr uint32_t kMinTouched = 3;  // such chunks in operands of one size: others of it are taken to be touched
constexpr double kSuspect = 0.5;
constexpr uint32_t kUses = 2;  // launches that name a chunk and do not touch it
// A large operand may be all memory of a program, so one chance hit in its used part must not stand for the rest.
constexpr uint64_t kBytesOfFirstSample = uint64_t{256} << 20;
constexpr uint32_t kMaxPendingAlike = 4;  // first samples under way in operands of one size
// In chunks moved over the link. kOverdraft: the cost beyond credit of samples of operands that were found untouched.
constexpr double kSuccessGain = 2, kInitialCredit = 128, kMaxCredit = 4096, kOverdraft = 512;
constexpr double kLackingShare = 0.001;  // of the bytes that launches lack, until the first credit is there again
}  // namespace

const double TouchSampler::kMaxTouched = 256;

TouchSampler::TouchSampler(const LinkModel* link) : link_(link), credit_(kInitialCredit) {}

double TouchSampler::FaultCost() const {
  return static_cast<double>(margins::kFaultSpread.Of(link_->NsPerGiB(LinkStep::kFault))) /
         static_cast<double>(link_->NsPerGiB(LinkStep::kFetch));
}

TouchSampler::Counts TouchSampler::OwnCounts(Extent operand) const {
  const auto own = operands_.find(operand.base);
  return own != operands_.end() ? own->second : Counts{};
}

TouchSampler::Counts TouchSampler::AlikeCounts(Extent operand) const {
  const auto alike = sizes_.find(operand.bytes);
  return alike != sizes_.end() ? alike->second : Counts{};
}

// By the rule of succession, with others of its size as so many chunks.
double TouchSampler::ProbabilityOf(Extent operand) const {
  const Counts own = OwnCounts(operand), alike = AlikeCounts(operand);
  const double prior = (alike.touched + 1.0) / (alike.tried + 2.0);
  return (own.touched + prior * kPriorChunks) / (own.tried + kPriorChunks);
}

bool TouchSampler::IsSuspect(Extent operand) const {
  return AlikeCounts(operand).tried && ProbabilityOf(operand) < kSuspect;
}

void TouchSampler::NoteLacking(uint64_t bytes) {
  if (credit_ < kInitialCredit) credit_ += static_cast<double>(bytes) / kChunkBytes * kLackingShare;
}

size_t TouchSampler::Allowance(Extent operand, size_t unknown, double* touched, bool sparse) {
  if (!enabled_ || operand.bytes < kMinOperandBytes || !unknown) return 0;
  auto own = operands_.find(operand.base);
  if (own == operands_.end()) {
    if (operands_.size() >= kMaxOperands) {  // of phases that are long over
      operands_.clear();
      sizes_.clear();
    }
    own = operands_.emplace(operand.base, Counts{}).first;
  }
  const double probability = sparse ? std::min(ProbabilityOf(operand), kSuspect) : ProbabilityOf(operand);
  if (sparse || IsSuspect(operand)) {
    const double most = std::min((credit_ + kOverdraft) / FaultCost(), *touched) / probability;
    const size_t allowed = std::min(unknown, static_cast<size_t>(std::max(0.0, most)));
    *touched -= static_cast<double>(allowed) * probability;
    return allowed;
  }
  // One at a time of the unknown chunks. A chunk that was found touched stays resident or is placed by its cost: a
  // sample of a graph that lacks bytes all the time would cost a replay.
  const bool is_new =
      own->second.tried <= operand.bytes / kBytesOfFirstSample && own->second.pending == 0 && !IsTouchedWhole(operand);
  const bool may_begin = AlikeCounts(operand).pending < kMaxPendingAlike && credit_ >= FaultCost();
  if (!is_new || !may_begin || *touched < probability) return 0;
  *touched -= probability;
  return 1;
}

// Where operands have untouched chunks, their use moves: pages of sequences that end and begin.
size_t TouchSampler::AllowanceOfOld(Extent operand, size_t old, double* touched) const {
  const Counts alike = AlikeCounts(operand);
  if (!enabled_ || alike.touched == alike.tried) return 0;
  const double most = std::max(0.0, std::min(credit_ / FaultCost(), *touched));
  const size_t allowed = std::min(old, static_cast<size_t>(most));
  *touched -= static_cast<double>(allowed);
  return allowed;
}

bool TouchSampler::IsTouchedWhole(Extent operand) const {
  return AlikeCounts(operand).touched >= kMinTouched && ProbabilityOf(operand) >= kSuspect;
}

void TouchSampler::Begin(Chunk* chunk, Extent operand) {
  if (IsLeftOut(*chunk)) return;
  const bool is_again = chunk->touch == Touch::kTouched;
  chunk->touch = Touch::kSampled;
  ++left_out_;
  ++stats_.samples;
  for (Counts* const counts : {&operands_[operand.base], &sizes_[operand.bytes]}) ++counts->pending;
  const double paid = FaultCost() * (is_again ? 1 : ProbabilityOf(operand));
  credit_ -= paid;
  companions_.NoteOperand(operand);
  samples_[chunk->base] = {.operand = operand, .is_again = is_again, .paid = paid};
}

void TouchSampler::NoteNamed(const Chunk& chunk, Mark mark, uint32_t uses, uint64_t now, uint64_t min_launches) {
  const auto it = samples_.find(chunk.base);
  if (it == samples_.end() || it->second.counts_all) return;
  Sample& sample = it->second;
  sample.seen_at = now;
  if (!sample.named_at) sample.named_at = now;
  sample.uses += uses;
  sample.counts_all = sample.uses >= kUses && now >= sample.named_at + min_launches;
  sample.mark = mark;
}

void TouchSampler::EndUnnamed(uint64_t now, uint64_t max_age, ChunkTable* chunks) {
  for (auto it = samples_.begin(); it != samples_.end();) {
    Sample& sample = it->second;
    if (!sample.seen_at) sample.seen_at = now;
    if (sample.counts_all || now - sample.seen_at <= max_age) {
      ++it;
      continue;
    }
    credit_ += sample.paid;
    EndSample(sample);
    if (Chunk* const chunk = chunks->Find(it->first)) {
      chunk->touch = Touch::kUnknown;
      --left_out_;
    }
    it = samples_.erase(it);
  }
}

void TouchSampler::Count(const Sample& sample, bool is_touched) {
  for (Counts* const counts : {&operands_[sample.operand.base], &sizes_[sample.operand.bytes]}) {
    if (sample.is_again) break;
    ++counts->tried;
    counts->touched += is_touched;
  }
  EndSample(sample);
}

void TouchSampler::EndSample(const Sample& sample) {
  for (Counts* const counts : {&operands_[sample.operand.base], &sizes_[sample.operand.bytes]})
    counts->pending -= counts->pending != 0;
}

bool TouchSampler::NoteFault(Chunk* chunk, uint64_t now) {
  const bool was_left_out = IsLeftOut(*chunk);
  chunk->touched_at = now;
  if (chunk->touch == Touch::kSampled) {
    const auto it = samples_.find(chunk->base);
    if (it != samples_.end()) {
      Count(it->second, true);
      credit_ -= FaultCost() - it->second.paid;
      samples_.erase(it);
    }
    ++stats_.touched;
  } else if (chunk->touch == Touch::kUntouched) {
    ++stats_.late;
    companions_.NoteFault(chunk->base, now);
  }
  if (was_left_out) --left_out_;
  chunk->touch = Touch::kTouched;
  return was_left_out;
}

void TouchSampler::Conclude(ChunkTable* chunks) {
  for (auto it = samples_.begin(); it != samples_.end();) {
    Sample& sample = it->second;
    if (!sample.is_over) {
      ++it;
    } else {
      credit_ = std::min(kMaxCredit, credit_ + sample.paid + kSuccessGain);
      Count(sample, false);
      ++stats_.untouched;
      if (Chunk* const chunk = chunks->Find(it->first)) chunk->touch = Touch::kUntouched;  // it stays left out
      it = samples_.erase(it);
    }
  }
}

void TouchSampler::Presume(Chunk* chunk, uint64_t now) {
  Forget(chunk);
  chunk->touch = Touch::kPresumed;
  chunk->touched_at = now;
}

void TouchSampler::Return(Chunk* chunk, uint64_t now) {
  Forget(chunk);
  chunk->touch = Touch::kTouched;
  chunk->touched_at = now;
}

void TouchSampler::ForgetKnown(Chunk* chunk) {
  if (IsLeftOut(*chunk)) --left_out_;
  if (chunk->touch == Touch::kSampled) {
    const auto it = samples_.find(chunk->base);
    if (it != samples_.end()) {
      EndSample(it->second);
      samples_.erase(it);
    }
  }
  chunk->touch = Touch::kUnknown;
}

void TouchSampler::RemoveArena(Extent arena) {
  companions_.RemoveArena(arena);
  std::erase_if(operands_, [&](const auto& operand) { return operand.first - arena.base < arena.bytes; });
}

}  // namespace sluice::policy
