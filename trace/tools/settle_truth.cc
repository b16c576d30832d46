#include "settle_truth.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ranges.h"

namespace sluice::trace {
namespace {

constexpr uint64_t kVaBlockBytes = uint64_t{2} << 20;  // the driver's density heuristic looks at one VA block
constexpr uint64_t kSmallPageBytes = 4096;

// Whether a page of the tensor that no other tensor shares faulted.
bool FaultedAlone(const Range& tensor, const std::vector<Range>& tensors, const std::vector<Range>& faulted) {
  for (const Range& r : faulted) {
    const uint64_t first = std::max(r.address, tensor.address / kSmallPageBytes * kSmallPageBytes);
    const uint64_t last = std::min(r.address + r.bytes, tensor.address + tensor.bytes);
    for (uint64_t page = first; page < last; page += kSmallPageBytes) {
      bool shared = false;
      for (const Range& other : tensors) {
        shared = shared || (other.address != tensor.address &&
                            Overlap(other.address, other.address + other.bytes, page, page + kSmallPageBytes));
      }
      if (!shared) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<Piece> TouchedPieces(const Launch& launch, const LiveTensors& live, uint64_t& accepted) {
  struct VaBlock {
    std::vector<Range> faulted, guessed;
  };
  std::vector<Piece> pieces;
  std::map<uint64_t, VaBlock> blocks;
  const auto split = [&blocks](const std::vector<Range>& ranges, bool faulted) {
    for (const Range& r : ranges) {
      for (uint64_t at = r.address; at < r.address + r.bytes;) {
        const uint64_t number = at / kVaBlockBytes;
        const uint64_t end = std::min(r.address + r.bytes, (number + 1) * kVaBlockBytes);
        VaBlock& block = blocks[number];
        (faulted ? block.faulted : block.guessed).push_back({at, end - at});
        at = end;
      }
    }
  };
  split(launch.truth, true);
  split(launch.guessed, false);
  for (const auto& [number, block] : blocks) {
    const uint64_t begin = number * kVaBlockBytes, end = begin + kVaBlockBytes;
    const std::vector<Range> tensors = live.Over(begin, end);
    for (const Range& tensor : tensors) {
      const bool alone = FaultedAlone(tensor, tensors, block.faulted) || Common(launch.changed, {tensor}) != 0;
      const auto clip = [&](const std::vector<Range>& from) {
        uint64_t sum = 0;
        for (const Range& r : from) {
          const uint64_t first = std::max(r.address, tensor.address);
          const uint64_t last = std::min(r.address + r.bytes, tensor.address + tensor.bytes);
          if (first >= last) continue;
          pieces.push_back({{first, last - first}, tensor});
          sum += last - first;
        }
        return sum;
      };
      clip(block.faulted);
      if (alone) accepted += clip(block.guessed);
    }
    // Faults outside all known tensors (a library's own block) stay as they are.
    for (const Range& r : block.faulted) {
      if (live.Over(r.address, r.address + r.bytes).empty()) pieces.push_back({r, {0, 0}});
    }
  }
  return pieces;
}

void AddDirections(std::vector<Piece>& pieces, const std::vector<Range>& changed) {
  struct Sums {
    uint64_t touched = 0, changed = 0, overwritten = 0;
  };
  const auto common = [&changed](const Range& range, const auto& each) {
    auto run = std::upper_bound(changed.begin(), changed.end(), range.address,
                                [](uint64_t address, const Range& r) { return address < r.address + r.bytes; });
    for (; run != changed.end() && run->address < range.address + range.bytes; ++run) {
      const uint64_t first = std::max(run->address, range.address);
      each(Range{first, std::min(run->address + run->bytes, range.address + range.bytes) - first, run->access});
    }
  };
  std::map<uint64_t, Sums> tensors;
  const auto key = [](const Piece& p) { return p.tensor.bytes != 0 ? p.tensor.address : p.range.address; };
  for (const Piece& piece : pieces) {
    Sums& sums = tensors[key(piece)];
    sums.touched += piece.range.bytes;
    common(piece.range, [&sums](const Range& run) {
      (run.access == Access::kWrite ? sums.overwritten : sums.changed) += run.bytes;
    });
  }
  std::vector<Piece> directed;
  for (Piece piece : pieces) {
    const Sums& sums = tensors[key(piece)];
    piece.range.access = Access::kRead;
    if (2 * (sums.changed + sums.overwritten) >= sums.touched) {
      piece.range.access = sums.overwritten > sums.changed ? Access::kWrite : Access::kReadWrite;
      directed.push_back(piece);
      continue;
    }
    uint64_t at = piece.range.address;
    const uint64_t end = at + piece.range.bytes;
    common(piece.range, [&](const Range& run) {
      directed.push_back({{at, run.address - at, Access::kRead}, piece.tensor});
      directed.push_back({run, piece.tensor});
      at = run.address + run.bytes;
    });
    directed.push_back({{at, end - at, Access::kRead}, piece.tensor});
  }
  std::erase_if(directed, [](const Piece& p) { return p.range.bytes == 0; });
  pieces = std::move(directed);
}

}  // namespace sluice::trace
