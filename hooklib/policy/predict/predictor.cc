#include "hooklib/policy/predict/predictor.h"

#include <algorithm>

namespace sluice::policy {

void Predictor::OnLaunch(uint64_t id, uint64_t place, std::span<Chunk* const> set, uint64_t now, uint32_t living) {
  if (log_.empty()) {
    log_.resize(kLog);
    refs_.resize(kRefs);
    newest_.resize(size_t{1} << (64 - kHeadShift));
  }
  const uint64_t three = PlaceHash::Mix(PlaceHash::Mix(last_places_[0], last_places_[1]), place);
  last_places_[0] = last_places_[1];
  last_places_[1] = place;
  // Where are we? The expected follower; where that one touched other chunks, rather a place where all three stood
  // together before, the newest. So too where the last prediction went wrong: the last round of a phase that has come
  // back ends with another phase's first launches, and would mislead once more.
  const bool follows = cursor_ && Valid(cursor_ + 1) && log_[(cursor_ + 1) % kLog].id == id;
  const bool exact = follows && log_[(cursor_ + 1) % kLog].place == place;
  uint64_t found = 0;
  if (!exact || cursor_ + 1 == misled_) found = Where(three);
  if (follows && (exact || !found)) {
    cursor_ = found ? found : cursor_ + 1;
    ++streak_;
  } else {
    if (cursor_) ++wrong_;
    misled_ = cursor_;
    streak_ = 0;
    cursor_ = found;
    looked_ = cursor_;
  }

  const uint64_t pos = ++count_;
  Entry& entry = log_[pos % kLog];
  entry = {id, place, three, 0, now, refs_count_, static_cast<uint32_t>(std::min(set.size(), kRefs / 8)), living};
  Enter(three, pos);
  const Entry* const before = cursor_ && Valid(cursor_) ? &log_[cursor_ % kLog] : nullptr;
  if (before) stretch_ = Stretch(pos - cursor_, now - before->now);
  // Chunks and references may lie anywhere, for all that a compiler knows: what does not change is at hand here.
  Ref* const refs = refs_.data();
  const uint64_t cursor = cursor_, stretch = stretch_;
  const size_t count = entry.count, match_count = before ? std::min<size_t>(before->count, count) : 0;
  const auto enter = [=](Chunk* chunk, Ref* own, uint32_t ref, uint32_t match, uint64_t next_pos, uint32_t died) {
    chunk->log_match = match;
    chunk->freed_in = died;
    chunk->next_use = next_pos > cursor ? now + ((next_pos - cursor) * stretch >> kUnitShift) : kNever;
    chunk->log_ref = ref;
    own->chunk = chunk;
    own->next_pos = 0;
    own->died = 0;
  };
  // The chunk's previous reference learns that its next use is now; for a chunk used once a round that is the very one
  // that is asked next.
  const auto link = [=](const Chunk* chunk, uint32_t ref) {
    Ref& last = refs[chunk->log_ref];
    if (last.chunk != chunk || last.next_pos != 0) return;
    last.next_pos = pos;
    last.next_ref = ref;
  };
  const auto enter_other = [&](Chunk* chunk, size_t place_in_set, uint32_t ref) {
    const uint32_t match = before ? Near(*before, static_cast<uint32_t>(place_in_set), chunk) : 0;
    const Ref* const last = match ? refs + match - 1 : nullptr;
    enter(chunk, refs + ref, ref, match, last ? last->next_pos : 0, last ? last->died : 0);
  };
  size_t i = 0;
  while (i < match_count) {  // in one go, as far as neither these references nor those go round the ring
    auto ref = static_cast<uint32_t>((refs_count_ + i) % kRefs);
    const size_t first = (before->first + i) % kRefs;
    const size_t n = std::min({match_count - i, kRefs - ref, kRefs - first});
    const std::ptrdiff_t to_match = static_cast<std::ptrdiff_t>(first) - ref;
    const auto match = static_cast<uint32_t>(to_match + 1);  // from the reference's number
    Ref* own = refs + ref;
    for (Chunk *const *at = set.data() + i, *const *const end = at + n; at != end; ++at, ++own, ++ref) {
      Chunk* const chunk = *at;
      link(chunk, ref);
      // The same place in the set almost always; else look near it.
      if (own[to_match].chunk == chunk) [[likely]] {
        enter(chunk, own, ref, ref + match, own[to_match].next_pos, own[to_match].died);
      } else {
        enter_other(chunk, static_cast<size_t>(at - set.data()), ref);
      }
    }
    i += n;
  }
  for (; i < count; ++i) {
    const auto ref = static_cast<uint32_t>((refs_count_ + i) % kRefs);
    link(set[i], ref);
    enter_other(set[i], i, ref);
  }
  refs_count_ += count;
  looked_ = std::max(looked_, cursor_);
}

bool Predictor::MayRepeat(uint64_t before) {
  round_ = cursor_ ? count_ - cursor_ : 0;
  if (!round_ || round_ > kLog / 4 || streak_ < 2 * round_ || before < 2 * round_ || !Valid(count_ - round_)) {
    return false;
  }
  repeated_at_.resize(kLog);
  repeats_next_ = count_ - round_ + 1;
  return true;
}

// Rounds are alike, so of many the last one says enough, and what came of the one behind it.
void Predictor::CatchUp() {
  if (!repeats_) return;
  const uint64_t left_out = (repeats_ / round_ - std::min(repeats_ / round_, uint64_t{1})) * round_;
  const uint64_t first = count_ - round_ + 1, launches = repeats_ - left_out, looked = looked_ - cursor_;
  repeats_ = 0;
  if (left_out) {  // as if the round in the log had come just before
    for (uint64_t i = 0; i < round_; ++i) log_[(first + i) % kLog].now = repeated_at_[(left_out - round_ + i) % kLog];
  }
  for (uint64_t i = 0; i < launches; ++i) {
    const Entry entry = log_[(first + i) % kLog];
    again_.resize(entry.count);
    for (uint32_t j = 0; j < entry.count; ++j) again_[j] = refs_[(entry.first + j) % kRefs].chunk;
    OnLaunch(entry.id, entry.place, again_, repeated_at_[(left_out + i) % kLog], entry.living);
  }
  looked_ = std::max(looked_, std::min(cursor_ + looked, count_ - 1));
}

// A program whose every second launch is a copy was predicted twice too soon: what had not come by then counted as
// unknown, and left first, though it was needed next.
uint64_t Predictor::Stretch(uint64_t launches, uint64_t numbers) {
  return launches == numbers ? uint64_t{1} << kUnitShift : ((numbers << kUnitShift) + launches / 2) / launches;
}

uint32_t Predictor::Near(const Entry& entry, uint32_t place, const Chunk* chunk) const {
  for (uint32_t j = place < entry.count ? place : 0, tries = 0; tries < entry.count && tries < 64; ++tries) {
    const auto at = static_cast<uint32_t>((entry.first + j) % kRefs);
    if (refs_[at].chunk == chunk) return at + 1;
    if (++j == entry.count) j = 0;
  }
  return 0;
}

uint64_t Predictor::Where(uint64_t three) const {
  for (uint64_t pos = newest_[three >> kHeadShift]; Valid(pos); pos = log_[pos % kLog].older) {
    if (log_[pos % kLog].three == three) return pos;
  }
  return 0;
}

void Predictor::Enter(uint64_t three, uint64_t pos) {
  uint64_t& newest = newest_[three >> kHeadShift];
  // Of those alike in a row the newest is enough: a loop of few launches would make the way as long as the log.
  const Entry& last = log_[newest % kLog];
  log_[pos % kLog].older = Valid(newest) && last.three == three ? last.older : newest;
  newest = pos;
}

std::span<Chunk* const> Predictor::Ahead(uint64_t horizon, uint64_t* at, uint64_t* id) {
  ahead_.clear();
  if (!cursor_ || !confident()) return ahead_;
  looked_before_ = looked_;
  while (looked_ < cursor_ + horizon && looked_ + 1 < count_ && Valid(looked_ + 1)) {
    const Entry& entry = log_[++looked_ % kLog];
    *at = log_[count_ % kLog].now + Stretched(looked_ - cursor_);
    *id = entry.id;
    ahead_.resize(entry.count);
    for (uint32_t i = 0; i < entry.count; ++i) ahead_[i] = refs_[(entry.first + i) % kRefs].chunk;
    if (!ahead_.empty()) break;
  }
  return ahead_;
}

uint32_t Predictor::Growth() {
  if (growth_.from != cursor_) growth_ = {cursor_, cursor_, log_[cursor_ % kLog].living, 0};
  for (; growth_.to < looked_; ++growth_.to) {
    const uint32_t living = log_[(growth_.to + 1) % kLog].living;
    growth_.least = std::min(growth_.least, living);
    growth_.most = std::max(growth_.most, living - growth_.least);
  }
  return growth_.most;
}

uint32_t Predictor::GrowthIn(uint64_t launches) const {
  if (!cursor_ || !Valid(cursor_)) return 0;
  const uint32_t living = log_[cursor_ % kLog].living;
  uint32_t most = living;
  // Of a few launches one says enough: each is a cache line.
  for (uint64_t pos = cursor_ + 1; pos <= count_ && pos < cursor_ + launches; pos += 4)
    most = std::max(most, log_[pos % kLog].living);
  return most - living;
}

void Predictor::Forget() { *this = Predictor(); }

}  // namespace sluice::policy
