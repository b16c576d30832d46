#include "hooklib/policy/predict/predictor.h"

#include <algorithm>
#include <utility>

namespace sluice::policy {

namespace {

constexpr int kMaxHops = 16;
constexpr uint32_t kBorn = UINT32_MAX;  // LogReference::last_ref

}  // namespace

void Predictor::NoteLaunch(uint64_t id, uint64_t set_hash, std::span<Chunk* const> set, uint64_t now,
                           uint32_t live_chunks, bool all_resident) {
  if (log_.empty()) log_.Allocate(kLogLaunches);
  if (refs_.empty()) refs_.Allocate(kLogReferences);  // each may throw
  if (earliest_.empty()) earliest_.Allocate(kLogReferences);
  if (buckets_.empty()) buckets_.Allocate(size_t{1} << (64 - kBucketShift));
  moved_.clear();
  moved_.reserve(std::min(set.size(), kLogReferences / 8));
  const uint64_t triple = LaunchHash::Mix(LaunchHash::Mix(last_hashes_[0], last_hashes_[1]), set_hash);
  last_hashes_[0] = last_hashes_[1];
  last_hashes_[1] = set_hash;
  // The present position: the expected successor. If that one touched other chunks, rather the newest position where
  // all three launches stood together. So too where the last prediction was wrong: the last iteration of a phase that
  // returns ends with another phase's first launches, and would mislead once more.
  const bool follows = cursor_ && IsRemembered(cursor_ + 1) && log_[(cursor_ + 1) % kLogLaunches].id == id;
  const bool exact = follows && log_[(cursor_ + 1) % kLogLaunches].set_hash == set_hash;
  uint64_t found = 0;
  if (!exact || cursor_ + 1 == mispredicted_) found = FindTriple(triple);
  // Where all memory lies at new addresses, ids alone tell the position.
  const uint64_t by_ids = id_cursor_.Follow(id, count_ + 1, [this](uint64_t pos, uint64_t at) {
    return IsRemembered(pos) && log_[pos % kLogLaunches].id == at;
  });
  if (!follows && !found) found = by_ids;
  if (follows && (exact || !found)) {
    cursor_ = found ? found : cursor_ + 1;
    ++streak_;
  } else {
    if (cursor_) ++wrong_;
    mispredicted_ = cursor_;
    streak_ = 0;
    cursor_ = found;
    looked_to_ = looked_from_ = cursor_;
  }

  const uint64_t pos = ++count_;
  Entry& entry = log_[pos % kLogLaunches];
  entry = {id,
           set_hash,
           triple,
           0,
           now,
           refs_count_,
           static_cast<uint32_t>(std::min(set.size(), kLogReferences / 8)),
           live_chunks,
           all_resident};
  Index(triple, pos);
  const Entry* const before = cursor_ && IsRemembered(cursor_) ? &log_[cursor_ % kLogLaunches] : nullptr;
  if (before) numbers_per_launch_ = NumbersPerLaunch(pos - cursor_, now - before->now);
  // The compiler must assume that chunks and references alias anything: constants are kept in locals.
  Ref* const refs = refs_.data();
  const uint64_t cursor = cursor_, numbers_per_launch = numbers_per_launch_;
  const size_t count = entry.count, match_count = before ? std::min<size_t>(before->count, count) : 0;
  const auto enter = [=](Chunk* chunk, Ref* own, uint32_t ref, uint32_t match, uint64_t next_pos, uint32_t freed_after,
                         uint32_t last_ref) {
    chunk->log_match = match;
    chunk->freed_in = freed_after;
    chunk->next_use = next_pos > cursor ? now + ((next_pos - cursor) * numbers_per_launch >> kUnitShift) : kNever;
    chunk->log_ref = ref;
    own->chunk = chunk;
    own->next_pos = 0;
    own->freed_after = 0;
    own->last_ref = last_ref;
    own->repeated_ref = 0;
  };
  // The chunk's previous reference learns that its next use is now. For a chunk used once in a period that is the
  // reference that is read next. Returns the new reference's last_ref.
  const auto link = [=](const Chunk* chunk, uint32_t ref) -> uint32_t {
    Ref& last = refs[chunk->log_ref];
    if (last.chunk != chunk || last.next_pos != 0) return 0;
    last.next_pos = pos;
    last.next_ref = ref;
    return last.freed_after ? kBorn : chunk->log_ref + 1;
  };
  uint32_t moved_by = 0;
  const auto enter_other = [&](Chunk* chunk, size_t index, uint32_t ref, uint32_t last_ref) {
    // Memory at a new address is told by its place in the set: surely if its last use repeats that of the place's.
    uint32_t match = 0;
    const uint32_t same =
        before && before->count == count ? static_cast<uint32_t>((before->first + index) % kLogReferences) + 1 : 0;
    if (same && IsRepeated(refs[same - 1].last_ref, last_ref)) match = same;
    if (before && !match) match = FindReference(*before, static_cast<uint32_t>(index), chunk, &moved_by);
    const bool is_born = last_ref == kBorn;
    if (!match || (same && is_born != (refs[match - 1].last_ref == kBorn))) match = same;
    Ref* const last = match ? refs + match - 1 : nullptr;
    enter(chunk, refs + ref, ref, match, last ? last->next_pos : 0, last ? last->freed_after : 0, last_ref);
    if (!last) return;
    last->repeated_ref = ref + 1;
    if (last->next_pos == 0) moved_.push_back(chunk);
  };
  size_t i = 0;
  while (i < match_count) {  // in one go, as far as neither range of references wraps around the ring
    auto ref = static_cast<uint32_t>((refs_count_ + i) % kLogReferences);
    const size_t first = (before->first + i) % kLogReferences;
    const size_t n = std::min({match_count - i, kLogReferences - ref, kLogReferences - first});
    const std::ptrdiff_t to_match = static_cast<std::ptrdiff_t>(first) - ref;
    const auto match = static_cast<uint32_t>(to_match + 1);  // to be added to the reference's number
    Ref* own = refs + ref;
    for (Chunk *const *at = set.data() + i, *const *const end = at + n; at != end; ++at, ++own, ++ref) {
      Chunk* const chunk = *at;
      const uint32_t last_ref = link(chunk, ref);
      // Nearly always the same place in the set; else near it.
      if (Ref& same = own[to_match]; same.chunk == chunk) [[likely]] {
        enter(chunk, own, ref, ref + match, same.next_pos, same.freed_after, last_ref);
        same.repeated_ref = ref + 1;
      } else {
        enter_other(chunk, static_cast<size_t>(at - set.data()), ref, last_ref);
      }
    }
    i += n;
  }
  for (; i < count; ++i) {
    const auto ref = static_cast<uint32_t>((refs_count_ + i) % kLogReferences);
    enter_other(set[i], i, ref, link(set[i], ref));
  }
  // This very launch may use the repeated launch's chunk, at a later place of its set: its next use is known only now.
  for (Chunk* const chunk : moved_) {
    const Ref& last = refs[chunk->log_match - 1];
    chunk->freed_in = last.freed_after;
    if (last.next_pos > cursor) chunk->next_use = now + ((last.next_pos - cursor) * numbers_per_launch >> kUnitShift);
  }
  refs_count_ += count;
  looked_to_ = std::max(looked_to_, cursor_);
}

bool Predictor::CanRepeat(uint64_t before) {
  period_ = cursor_ ? count_ - cursor_ : 0;
  if (!period_ || period_ > kLogLaunches / 4 || streak_ < 2 * period_ || before < 2 * period_ ||
      !IsRemembered(count_ - period_)) {
    return false;
  }
  if (repeated_at_.empty()) repeated_at_.Allocate(kLogLaunches);
  repeats_next_ = count_ - period_ + 1;
  return true;
}

// Periods are alike, so of many the last one suffices, and the launches behind it.
void Predictor::CatchUp() {
  if (!repeats_) return;
  const uint64_t left_out = (repeats_ / period_ - std::min(repeats_ / period_, uint64_t{1})) * period_;
  const uint64_t first = count_ - period_ + 1, launches = repeats_ - left_out, looked = looked_to_ - cursor_;
  repeats_ = 0;
  if (left_out) {  // as if the period in the log had just been
    for (uint64_t i = 0; i < period_; ++i)
      log_[(first + i) % kLogLaunches].now = repeated_at_[(left_out - period_ + i) % kLogLaunches];
  }
  for (uint64_t i = 0; i < launches; ++i) {
    const Entry entry = log_[(first + i) % kLogLaunches];
    repeated_set_.resize(entry.count);
    for (uint32_t j = 0; j < entry.count; ++j) repeated_set_[j] = refs_[(entry.first + j) % kLogReferences].chunk;
    NoteLaunch(entry.id, entry.set_hash, repeated_set_, repeated_at_[(left_out + i) % kLogLaunches], entry.live_chunks,
               entry.all_resident);
  }
  looked_to_ = looked_from_ = std::max(looked_to_, std::min(cursor_ + looked, count_ - 1));
}

// The predicted distance counts launch numbers. Without this factor a program whose every second launch is a copy was
// predicted twice too soon: overdue chunks then counted as unknown and were evicted first, though they were needed
// next.
uint64_t Predictor::NumbersPerLaunch(uint64_t launches, uint64_t numbers) {
  return launches == numbers ? uint64_t{1} << kUnitShift : ((numbers << kUnitShift) + launches / 2) / launches;
}

uint32_t Predictor::FindReference(const Entry& entry, uint32_t index, const Chunk* chunk, uint32_t* moved_by) const {
  const auto last = static_cast<uint32_t>((entry.first + index + *moved_by) % kLogReferences);
  if (index + *moved_by < entry.count && refs_[last].chunk == chunk) return last + 1;
  for (uint32_t j = index < entry.count ? index : 0, tries = 0; tries < entry.count && tries < 64; ++tries) {
    const auto at = static_cast<uint32_t>((entry.first + j) % kLogReferences);
    if (refs_[at].chunk == chunk) {
      *moved_by = tries;
      return at + 1;
    }
    if (++j == entry.count) j = 0;
  }
  return 0;
}

bool Predictor::IsRepeated(uint32_t last_ref, uint32_t now) const {
  if (now == 0 || now == kBorn || last_ref == 0 || last_ref == kBorn) return now != 0 && last_ref == now;
  const Ref* ref = &refs_[last_ref - 1];
  for (int repeats = 0; ref->repeated_ref != now; ++repeats) {
    if (!ref->repeated_ref || repeats == kMaxHops) return false;
    ref = &refs_[ref->repeated_ref - 1];
  }
  return true;
}

// The memory is that of its last use before the present, which is looked for backwards. Where launches before this one
// were looked at, earliest_ leads there.
Chunk* Predictor::Expected(uint32_t ref) {
  const Entry& now = log_[cursor_ % kLogLaunches];
  const Entry& found = log_[std::max(cursor_, looked_from_) % kLogLaunches];
  const uint64_t present = now.first + now.count, found_from = found.first + found.count;
  Chunk* const chunk = refs_[ref].chunk;
  uint32_t& earliest = earliest_[ref];
  for (int hops = 0; hops < kMaxHops; ++hops) {
    earliest = ref;
    const Ref& use = refs_[ref];
    if (use.last_ref == kBorn) {  // It was fresh then. If it holds other memory now, it will be fresh elsewhere.
      const Ref& newest = refs_[chunk->log_ref];
      return newest.chunk == chunk && newest.freed_after ? chunk : nullptr;
    }
    if (!use.last_ref) return chunk;
    uint32_t before = use.last_ref - 1;
    if (refs_[before].next_pos == 0 || refs_[before].next_ref != ref || refs_[before].chunk != chunk)
      return chunk;  // no longer in the ring
    if (NumberOf(before) >= present && NumberOf(before) >= found_from) before = earliest_[before];
    if (NumberOf(before) < present) {
      const Ref* holder = &refs_[before];
      if (holder->chunk != chunk) return chunk;
      for (int repeats = 0; holder->repeated_ref && repeats < kMaxHops; ++repeats)
        holder = &refs_[holder->repeated_ref - 1];
      return holder->chunk;
    }
    ref = before;
  }
  return chunk;
}

uint64_t Predictor::FindTriple(uint64_t triple) const {
  for (uint64_t pos = buckets_[triple >> kBucketShift]; IsRemembered(pos); pos = log_[pos % kLogLaunches].older) {
    if (log_[pos % kLogLaunches].triple == triple) return pos;
  }
  return 0;
}

void Predictor::Index(uint64_t triple, uint64_t pos) {
  uint64_t& newest = buckets_[triple >> kBucketShift];
  // In a row of equal triples the newest suffices: for a loop of few launches the chain would be as long as the log.
  const Entry& last = log_[newest % kLogLaunches];
  log_[pos % kLogLaunches].older = IsRemembered(newest) && last.triple == triple ? last.older : newest;
  newest = pos;
}

std::span<Chunk* const> Predictor::NextAhead(uint64_t horizon, uint64_t moved_at, uint64_t* at, uint64_t* id) {
  ahead_.clear();
  if (!cursor_ || !confident()) return ahead_;
  looked_to_before_ = looked_to_;
  while (looked_to_ < cursor_ + horizon && looked_to_ + 1 < count_ && IsRemembered(looked_to_ + 1)) {
    const Entry& entry = log_[++looked_to_ % kLogLaunches];
    if (entry.all_resident && entry.now > moved_at) {  // nothing moved since
      looked_from_ = looked_to_;
      continue;
    }
    *at = log_[count_ % kLogLaunches].now + InNumbers(looked_to_ - cursor_);
    *id = entry.id;
    for (uint32_t i = 0; i < entry.count; ++i) {
      const auto ref = static_cast<uint32_t>((entry.first + i) % kLogReferences);
      if (Chunk* const chunk = Expected(ref)) ahead_.push_back(chunk);
    }
    if (!ahead_.empty()) break;
  }
  return ahead_;
}

uint32_t Predictor::GrowthAhead() {
  if (growth_.from != cursor_) growth_ = {cursor_, cursor_, log_[cursor_ % kLogLaunches].live_chunks, 0};
  for (; growth_.to < looked_to_; ++growth_.to) {
    const uint32_t live_chunks = log_[(growth_.to + 1) % kLogLaunches].live_chunks;
    growth_.min_live = std::min(growth_.min_live, live_chunks);
    growth_.max_growth = std::max(growth_.max_growth, live_chunks - growth_.min_live);
  }
  return growth_.max_growth;
}

uint32_t Predictor::GrowthWithin(uint64_t launches) const {
  if (!cursor_ || !IsRemembered(cursor_)) return 0;
  const uint32_t live_chunks = log_[cursor_ % kLogLaunches].live_chunks;
  uint32_t max_live = live_chunks;
  // One of four launches suffices: each is a cache line.
  for (uint64_t pos = cursor_ + 1; pos <= count_ && pos < cursor_ + launches; pos += 4)
    max_live = std::max(max_live, log_[pos % kLogLaunches].live_chunks);
  return max_live - live_chunks;
}

void Predictor::Reset() { *this = Predictor(); }

}  // namespace sluice::policy
