#include "hooklib/core/predictor.h"

#include <algorithm>

namespace sluice::core {

namespace {
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
  x ^= x >> 31;
  return x * 0xbf58476d1ce4e5b9u;
}
}  // namespace

void Predictor::OnLaunch(uint64_t id, std::span<Chunk* const> set, uint64_t now) {
  if (log_.empty()) {
    log_.resize(kLog);
    refs_.resize(kRefs);
    newest_.resize(size_t{1} << (64 - kHeadShift));
  }
  uint64_t place = id;
  Va next = 0;  // of a run of chunks its begin and its end say enough
  for (const Chunk* chunk : set) {
    if (chunk->base != next) place = Mix(Mix(place, next), chunk->base);
    next = chunk->base + kChunkBytes;
  }
  place = Mix(place, next);
  const uint64_t three = Mix(Mix(last_places_[0], last_places_[1]), place);
  last_places_[0] = last_places_[1];
  last_places_[1] = place;
  // Where are we? The expected follower; where that one touched other chunks, rather a place where all three stood
  // together before.
  const bool follows = cursor_ && Valid(cursor_ + 1) && log_[(cursor_ + 1) % kLog].id == id;
  const bool exact = follows && log_[(cursor_ + 1) % kLog].place == place;
  uint64_t found = 0;
  if (!exact) found = Where(three);
  if (follows && !found) {
    ++cursor_;
    ++streak_;
  } else {
    if (cursor_) ++wrong_;
    streak_ = 0;
    cursor_ = found;
    looked_ = cursor_;
  }

  const uint64_t pos = ++count_;
  Entry& entry = log_[pos % kLog];
  entry = {id, place, three, 0, now, refs_count_, static_cast<uint32_t>(std::min(set.size(), kRefs / 8))};
  Enter(three, pos);
  const Entry* before = cursor_ && Valid(cursor_) ? &log_[cursor_ % kLog] : nullptr;
  // Chunks and references may lie anywhere, for all that a compiler knows: what does not change is at hand here.
  Ref* const refs = refs_.data();
  const uint64_t cursor = cursor_, first = refs_count_, match_first = before ? before->first : 0;
  const uint32_t count = entry.count, match_count = before ? before->count : 0;
  for (uint32_t i = 0; i < count; ++i) {
    Chunk* const chunk = set[i];
    // The chunk's previous reference learns that its next use is now; for a chunk used once a round that is the very
    // entry asked below.
    Ref& last = refs[chunk->log_ref];
    if (last.chunk == chunk && last.next_pos == 0 && last.owner < pos) {
      last.next_pos = pos;
      last.next_ref = first + i;
    }
    // The same place in the set almost always; else look near it.
    const Ref* match = i < match_count ? &refs[(match_first + i) % kRefs] : nullptr;
    if (match_count && (!match || match->chunk != chunk)) match = Near(*before, i, chunk);
    chunk->log_match = match ? static_cast<uint64_t>(match - refs) + kRefs : 0;  // never 0
    chunk->next_use = match && match->next_pos > cursor ? now + (match->next_pos - cursor) : kNever;
    chunk->log_ref = static_cast<uint32_t>((first + i) % kRefs);
    refs[(first + i) % kRefs] = {chunk, pos, 0, 0};
  }
  refs_count_ += count;
  looked_ = std::max(looked_, cursor_);
}

const Predictor::Ref* Predictor::Near(const Entry& entry, uint32_t place, const Chunk* chunk) const {
  for (uint32_t j = place < entry.count ? place : 0, tries = 0; tries < entry.count && tries < 64; ++tries) {
    const Ref& ref = refs_[(entry.first + j) % kRefs];
    if (ref.chunk == chunk) return &ref;
    if (++j == entry.count) j = 0;
  }
  return nullptr;
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
  while (looked_ < cursor_ + horizon && looked_ + 1 < count_ && Valid(looked_ + 1)) {
    const Entry& entry = log_[++looked_ % kLog];
    *at = log_[count_ % kLog].now + (looked_ - cursor_);
    *id = entry.id;
    ahead_.resize(entry.count);
    for (uint32_t i = 0; i < entry.count; ++i) ahead_[i] = refs_[(entry.first + i) % kRefs].chunk;
    if (!ahead_.empty()) break;
  }
  return ahead_;
}

void Predictor::Forget() { *this = Predictor(); }

}  // namespace sluice::core
