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
  }
  uint64_t place = id;
  for (const Chunk* chunk : set) place = Mix(place, chunk->base);
  const uint64_t three = Mix(Mix(last_places_[0], last_places_[1]), place);
  last_places_[0] = last_places_[1];
  last_places_[1] = place;
  // Where are we? The expected follower; where that one touched other chunks, rather a place where all three stood
  // together before.
  const bool follows = cursor_ && Valid(cursor_ + 1) && log_[(cursor_ + 1) % kLog].id == id;
  const bool exact = follows && log_[(cursor_ + 1) % kLog].place == place;
  uint64_t found = 0;
  if (!exact) {
    const auto it = where_.find(three);
    if (it != where_.end() && Valid(it->second)) found = it->second;
  }
  if (follows && !found) {
    ++cursor_;
    ++streak_;
  } else {
    if (cursor_) ++wrong_;
    streak_ = 0;
    cursor_ = found;
    looked_ = cursor_;
  }
  if (where_.size() > 4 * kLog) where_.clear();  // ids of phases that are long over

  const uint64_t pos = ++count_;
  where_[three] = pos;
  Entry& entry = log_[pos % kLog];
  entry = {id, place, now, refs_count_, static_cast<uint32_t>(std::min(set.size(), kRefs / 8))};
  const Entry* before = cursor_ && Valid(cursor_) ? &log_[cursor_ % kLog] : nullptr;
  for (uint32_t i = 0; i < entry.count; ++i) {
    Chunk* chunk = set[i];
    chunk->next_use = kNever;
    // The chunk's previous reference learns that its next use is now; for a chunk used once a round that is the very
    // entry asked below.
    Ref& last = refs_[chunk->log_ref % kRefs];
    if (last.chunk == chunk && last.next_pos == 0 && last.owner < pos) {
      last.next_pos = pos;
      last.next_ref = refs_count_;
    }
    chunk->log_match = 0;
    if (before) {
      // The same place in the set almost always; else look near it.
      const Ref* match = nullptr;
      for (uint32_t j = i < before->count ? i : 0, tries = 0; tries < before->count && tries < 64; ++tries) {
        const Ref& ref = refs_[(before->first + j) % kRefs];
        if (ref.chunk == chunk) {
          match = &ref;
          break;
        }
        if (++j == before->count) j = 0;
      }
      if (match) chunk->log_match = static_cast<uint64_t>(match - refs_.data()) + kRefs;  // never 0
      if (match && match->next_pos > cursor_) chunk->next_use = now + (match->next_pos - cursor_);
    }
    chunk->log_ref = static_cast<uint32_t>(refs_count_ % kRefs);
    refs_[refs_count_ % kRefs] = {chunk, pos, 0, 0};
    ++refs_count_;
  }
  looked_ = std::max(looked_, cursor_);
}

std::span<Chunk* const> Predictor::Ahead(uint64_t horizon, uint64_t* at, uint64_t* id) {
  ahead_.clear();
  if (!cursor_ || !confident()) return ahead_;
  while (looked_ < cursor_ + horizon && looked_ + 1 < count_ && Valid(looked_ + 1)) {
    const Entry& entry = log_[++looked_ % kLog];
    *at = log_[count_ % kLog].now + (looked_ - cursor_);
    *id = entry.id;
    for (uint32_t i = 0; i < entry.count; ++i) ahead_.push_back(refs_[(entry.first + i) % kRefs].chunk);
    if (!ahead_.empty()) break;
  }
  return ahead_;
}

void Predictor::Forget() { *this = Predictor(); }

}  // namespace sluice::core
