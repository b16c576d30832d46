// The brute-force oracle: every byte that an operation touches, entered one element at a time by the operation's own
// index formula, held against an access set.
#ifndef SLUICE_TEST_LIBRARIES_ORACLE_H_
#define SLUICE_TEST_LIBRARIES_ORACLE_H_

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "hooklib/libraries/extents/access_set.h"
#include "test/libraries/random.h"

namespace sluice::libraries::test {

// A bit for each byte of a small address space.
class Bytes {
 public:
  static constexpr uint64_t kBase = uint64_t{1} << 40, kSpace = 1 << 16;
  void Clear() {
    if (high_ >= low_) std::memset(&bits_[low_], 0, (high_ - low_ + 1) * 8);
    low_ = kSpace / 64;
    high_ = 0;
  }
  bool Set(uint64_t address, uint64_t count) {  // false: outside the space
    if (address < kBase || address + count > kBase + kSpace) return false;
    for (uint64_t i = address - kBase, end = i + count; i < end;) {
      const uint64_t word = i / 64, from = i % 64, n = std::min<uint64_t>(64 - from, end - i);
      bits_[word] |= (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << from;
      low_ = std::min(low_, word);
      high_ = std::max(high_, word);
      i += n;
    }
    return true;
  }
  uint64_t low() const { return low_; }
  uint64_t high() const { return high_; }
  uint64_t word(uint64_t i) const { return bits_[i]; }

 private:
  std::vector<uint64_t> bits_ = std::vector<uint64_t>(kSpace / 64);
  uint64_t low_ = kSpace / 64, high_ = 0;
};

struct Touched {
  Bytes read, written;
  bool inside = true;
  void Clear() {
    read.Clear();
    written.Clear();
    inside = true;
  }
  void Read(uint64_t address, uint64_t bytes) { inside &= read.Set(address, bytes); }
  void Write(uint64_t address, uint64_t bytes) { inside &= written.Set(address, bytes); }
};

// "" or what is wrong. `exact`: the set bridges nothing and must agree byte by byte; else it must hold all that is
// touched. In both what is called overwritten must be written and not read. `overwrites`: no operand overlaps another
// and all that is written is overwritten, so the set must say so.
class Judge {
 public:
  std::string operator()(const AccessSet& set, const Touched& truth, bool exact, bool overwrites) {
    read_.Clear();
    written_.Clear();
    overwritten_.Clear();
    for (const LibraryRange& range : set.ranges()) {
      if (range.bytes == 0) return "a range of unknown reach";
      if (range.read && !read_.Set(range.address, range.bytes)) return "reads outside";
      if (range.written && !written_.Set(range.address, range.bytes)) return "writes outside";
      if (range.overwritten && !overwritten_.Set(range.address, range.bytes)) return "overwrites outside";
    }
    const uint64_t low = std::min({read_.low(), written_.low(), truth.read.low(), truth.written.low()});
    const uint64_t high = std::max({read_.high(), written_.high(), truth.read.high(), truth.written.high()});
    for (uint64_t i = low; i <= high && i < Bytes::kSpace / 64; ++i) {
      const uint64_t r = truth.read.word(i), w = truth.written.word(i);
      if (r & ~read_.word(i)) return "a byte is read that the set lacks";
      if (w & ~written_.word(i)) return "a byte is written that the set lacks";
      if (overwritten_.word(i) & ~w) return "called overwritten, but not written";
      if (overwritten_.word(i) & r) return "called overwritten, but read";
      if (exact && (read_.word(i) & ~r)) return "the set reads a byte too many";
      if (exact && (written_.word(i) & ~w)) return "the set writes a byte too many";
      if (exact && overwrites && (w & ~overwritten_.word(i))) return "overwritten, but not called so";
    }
    return "";
  }

 private:
  Bytes read_, written_, overwritten_;
};

}  // namespace sluice::libraries::test

#endif  // SLUICE_TEST_LIBRARIES_ORACLE_H_
