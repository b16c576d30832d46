#include "content.h"

#include <algorithm>
#include <cstring>

namespace simgpu {

uint64_t Bytes::live = 0;

Bytes::Bytes(uint64_t n) : data(new uint8_t[n]), size(n) { live += n; }
Bytes::~Bytes() { live -= size; }

uint64_t HashBytes(const void* data, uint64_t length) {
  const auto* p = static_cast<const uint8_t*>(data);
  uint64_t lanes[4] = {length, 1, 2, 3};
  uint64_t i = 0;
  for (; i + 32 <= length; i += 32) {
    for (int l = 0; l < 4; ++l) {
      uint64_t word;
      std::memcpy(&word, p + i + static_cast<size_t>(l) * 8, 8);
      lanes[l] = (lanes[l] ^ word) * 0x9E3779B97F4A7C15ull;
      lanes[l] ^= lanes[l] >> 29;
    }
  }
  uint64_t h = Mix(Mix(lanes[0], lanes[1]), Mix(lanes[2], lanes[3]));
  for (; i < length; ++i) h = Mix(h, p[i]);
  return h;
}

size_t ContentMap::IndexOf(uint64_t offset) const {
  if (last_ < segments_.size() && segments_[last_].begin <= offset &&
      (last_ + 1 == segments_.size() || segments_[last_ + 1].begin > offset)) {
    return last_;
  }
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), offset,
                                      [](uint64_t o, const Segment& s) { return o < s.begin; });
  return static_cast<size_t>(after - segments_.begin()) - 1;
}

std::pair<size_t, size_t> ContentMap::Cut(uint64_t from, uint64_t to) {
  size_t i = IndexOf(from);
  if (segments_[i].begin < from) {
    Segment right = segments_[i];
    right.begin = from;
    segments_.insert(segments_.begin() + static_cast<ptrdiff_t>(++i), std::move(right));
  }
  size_t j = i;
  while (j < segments_.size() && EndOf(segments_[j]) <= to) ++j;
  if (j < segments_.size() && segments_[j].begin < to) {
    Segment right = segments_[j];
    right.begin = to;
    segments_.insert(segments_.begin() + static_cast<ptrdiff_t>(++j), std::move(right));
  }
  last_ = i;
  return {i, j};
}

void ContentMap::Assign(uint64_t from, uint64_t to, const Segment& s) {
  const auto [i, j] = Cut(from, to);
  if (j > i + 1) {
    segments_.erase(segments_.begin() + static_cast<ptrdiff_t>(i) + 1, segments_.begin() + static_cast<ptrdiff_t>(j));
  }
  segments_[i] = s;
  segments_[i].begin = from;
}

bool ContentMap::Continues(const Segment& a, const Segment& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Segment::kFill:
      return a.value == b.value;
    case Segment::kStamp:
      return a.value == b.value && a.origin == b.origin;
    case Segment::kBytes:
      return a.bytes == b.bytes && a.origin == b.origin;
    default:
      return true;
  }
}

uint64_t ContentMap::DigestOf(const Segment& s, uint64_t begin, uint64_t length, uint64_t seed) {
  const uint64_t shift = begin - static_cast<uint64_t>(s.origin);
  switch (s.kind) {
    case Segment::kNever:
      return Mix(Mix(seed, 11), length);
    case Segment::kFill:
      return Mix(Mix(seed, s.value), length);
    case Segment::kStamp:
      return Mix(Mix(seed, s.value), Mix(shift, length));
    case Segment::kBytes:
      return Mix(seed, HashBytes(s.bytes->data.get() + shift, length));
    case Segment::kDiscarded:
      return Mix(Mix(seed, 13), length);
  }
  return seed;
}

uint64_t ContentMap::Digest(uint64_t from, uint64_t to, uint64_t seed) const {
  for (size_t k = IndexOf(from); k < segments_.size() && segments_[k].begin < to;) {
    size_t last = k;
    while (last + 1 < segments_.size() && segments_[last + 1].begin < to &&
           Continues(segments_[k], segments_[last + 1])) {
      ++last;
    }
    const uint64_t begin = std::max(from, segments_[k].begin), end = std::min(to, EndOf(segments_[last]));
    seed = DigestOf(segments_[k], begin, end - begin, seed);
    k = last + 1;
  }
  return seed;
}

void ContentMap::Read(uint64_t from, uint64_t to, uint8_t* out, uint8_t never) {
  ForEach(from, to, [&](const Segment& s) {
    const uint64_t length = EndOf(s) - s.begin;
    const uint64_t shift = s.begin - static_cast<uint64_t>(s.origin);
    switch (s.kind) {
      case Segment::kNever:
      case Segment::kDiscarded:
        std::memset(out, s.kind == Segment::kNever ? never : 0xDD, length);
        break;
      case Segment::kFill:
        for (uint64_t i = 0; i < length; ++i) out[i] = static_cast<uint8_t>(s.value >> (8 * ((s.begin + i) & 7)));
        break;
      case Segment::kStamp:
        // Bytes that depend on stamp and place alone.
        for (uint64_t i = 0; i < length;) {
          const uint64_t at = shift + i;
          const uint64_t word = Mix(s.value, at >> 3);
          for (uint64_t b = at & 7; b < 8 && i < length; ++b, ++i) out[i] = static_cast<uint8_t>(word >> (8 * b));
        }
        break;
      case Segment::kBytes:
        std::memcpy(out, s.bytes->data.get() + shift, length);
        break;
    }
    out += length;
  });
}

}  // namespace simgpu
