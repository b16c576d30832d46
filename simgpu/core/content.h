// The contents of an allocation: real bytes of a copy, a fill value, or a version stamp. A stamp stands for contents
// that a simulated kernel computed. It depends on everything the kernel read, so equal digests mean equal computations,
// wherever the memory was.
#ifndef SIMGPU_CORE_CONTENT_H_
#define SIMGPU_CORE_CONTENT_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace simgpu {

inline uint64_t Mix(uint64_t h, uint64_t v) {
  h ^= v * 0x9E3779B97F4A7C15ull;
  h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93ull;
  return h ^ (h >> 32);
}
uint64_t HashBytes(const void* data, uint64_t length);

struct Bytes {
  std::unique_ptr<uint8_t[]> data;
  uint64_t size;
  explicit Bytes(uint64_t n);
  ~Bytes();
  static uint64_t live;  // of the whole process, limited by the profile's content_bytes
};

struct Segment {
  enum Kind : uint8_t { kNever, kFill, kStamp, kBytes, kDiscarded };
  uint64_t begin = 0;  // offset in the allocation; it ends where the next begins
  Kind kind = kNever;
  uint32_t object = 0;  // as named by the writer
  uint32_t user_stream = 0;
  uint64_t value = 0;   // kFill: 8 bytes repeated from address 0 on; kStamp: the stamp
  int64_t origin = 0;   // kStamp, kBytes: offset where its stream of bytes begins
  uint64_t writer = 0;  // operation number of the last write, discard or first use
  uint64_t user = 0;    // and of the last access
  int64_t write_until = 0, use_until = 0;
  std::shared_ptr<Bytes> bytes;
};

class ContentMap {
 public:
  explicit ContentMap(uint64_t size) : size_(size) { segments_.emplace_back(); }

  // Calls f(segment) for each segment of [from, to), cut at both ends.
  template <class F>
  void ForEach(uint64_t from, uint64_t to, F f) {
    const auto [i, j] = Cut(from, to);
    for (size_t k = i; k < j; ++k) f(segments_[k]);
  }
  // The same without cutting: f(segment, its part's begin, its part's end). Does not change digests of later parts.
  template <class F>
  void Visit(uint64_t from, uint64_t to, F f) const {
    for (size_t k = IndexOf(from); k < segments_.size() && segments_[k].begin < to; ++k) {
      f(segments_[k], std::max(from, segments_[k].begin), std::min(to, EndOf(segments_[k])));
    }
  }
  uint64_t EndOf(const Segment& s) const { return &s == &segments_.back() ? size_ : (&s + 1)->begin; }

  // Makes [from, to) one segment like `s`, and sets its begin.
  void Assign(uint64_t from, uint64_t to, const Segment& s);
  // Does not depend on how often a uniform range was cut.
  uint64_t Digest(uint64_t from, uint64_t to, uint64_t seed) const;
  // Writes the contents of [from, to) to out.
  void Read(uint64_t from, uint64_t to, uint8_t* out, uint8_t never);
  size_t segments() const { return segments_.size(); }

 private:
  static bool Continues(const Segment& a, const Segment& b);
  static uint64_t DigestOf(const Segment& s, uint64_t begin, uint64_t length, uint64_t seed);
  size_t IndexOf(uint64_t offset) const;
  std::pair<size_t, size_t> Cut(uint64_t from, uint64_t to);

  uint64_t size_;
  std::vector<Segment> segments_;
  size_t last_ = 0;  // the latest lookup: most touches repeat
};

}  // namespace simgpu

#endif  // SIMGPU_CORE_CONTENT_H_
