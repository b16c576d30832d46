#include "settle_carry.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "ranges.h"

namespace sluice::trace {
namespace {

// This launch's counterpart of the piece's tensor; bytes 0: none. Parameters may hold words left over from an earlier
// call (PyTorch's foreach kernels), so a word alone is no proof. The very same tensor is preferred, then one of equal
// size, then the first word's tensor.
Range Counterpart(const PortablePiece& p, const Launch& launch, const LiveTensors& live) {
  if (p.words.empty()) return p.tensor.bytes == 0 || live.At(p.tensor.address) == p.tensor ? p.tensor : Range{0, 0};
  Range like{0, 0}, first{0, 0};
  for (const size_t i : p.words) {
    if (i >= launch.words.size()) continue;
    const Range tensor = live.At(launch.words[i]);
    if (tensor == p.tensor) return tensor;
    if (first.bytes == 0) first = tensor;
    if (like.bytes == 0 && tensor.bytes == p.tensor.bytes) like = tensor;
  }
  return like.bytes != 0 ? like : first;
}

}  // namespace

std::vector<PortablePiece> MakePortable(const Launch& launch, const std::vector<Piece>& pieces) {
  std::vector<PortablePiece> out;
  for (const auto& [range, tensor] : pieces) {
    PortablePiece p{{}, range.address - tensor.address, range.bytes, range.access, tensor};
    for (size_t i = 0; i < launch.words.size(); ++i) {
      if (launch.words[i] - tensor.address < tensor.bytes) p.words.push_back(i);
    }
    out.push_back(std::move(p));
  }
  return out;
}

void DropLeftoverWords(std::vector<MeasuredLaunch>& measured, const std::vector<Launch>& launches) {
  std::map<uint32_t, std::vector<bool>> idle;  // by function: for each word, whether its tensor was once left untouched
  for (const MeasuredLaunch& m : measured) {
    if (m.launch == SIZE_MAX) continue;
    std::vector<bool>& words = idle[launches[m.launch].function];
    words.resize(std::max(words.size(), m.named.size()));
    for (size_t i = 0; i < m.named.size(); ++i) {
      const bool touched = std::any_of(m.pieces.begin(), m.pieces.end(),
                                       [&](const PortablePiece& p) { return p.tensor.address == m.named[i].address; });
      words[i] = words[i] || (m.named[i].bytes != 0 && !touched);
    }
  }
  for (MeasuredLaunch& m : measured) {
    if (m.launch == SIZE_MAX) continue;
    const std::vector<bool>& words = idle[launches[m.launch].function];
    for (PortablePiece& p : m.pieces) {
      std::vector<size_t> kept;
      std::copy_if(p.words.begin(), p.words.end(), std::back_inserter(kept), [&](size_t i) { return !words[i]; });
      if (!kept.empty()) p.words = std::move(kept);
    }
  }
}

std::vector<Range> Carry(const std::vector<PortablePiece>& pieces, const Launch& launch, const LiveTensors& live) {
  std::vector<Range> carried;
  for (const PortablePiece& p : pieces) {
    const Range tensor = Counterpart(p, launch, live);
    if (tensor.bytes == 0 && p.tensor.bytes != 0) continue;
    // A tensor that has grown since (a cache with one more position) is touched to its end, as its counterpart was.
    if (tensor.bytes != 0 && p.offset >= tensor.bytes) continue;
    uint64_t bytes = tensor.bytes != 0 ? std::min(p.bytes, tensor.bytes - p.offset) : p.bytes;
    if (p.tensor.bytes != 0 && p.offset + p.bytes == p.tensor.bytes) bytes = tensor.bytes - p.offset;
    carried.push_back({tensor.address + p.offset, bytes, p.access});
  }
  Merge(carried);
  return carried;
}

Shape ShapeOf(const Launch& launch) {
  Shape shape = {launch.function, launch.words.size()};
  shape.insert(shape.end(), std::begin(launch.grid), std::end(launch.grid));
  shape.insert(shape.end(), std::begin(launch.block), std::end(launch.block));
  return shape;
}

const MeasuredLaunch* MostAlike(const std::vector<const MeasuredLaunch*>& candidates, const Launch& launch,
                                const std::vector<Launch>& launches, const LiveTensors& live) {
  std::vector<Range> named;
  named.reserve(launch.words.size());
  for (const uint64_t word : launch.words) named.push_back(live.At(word));
  const MeasuredLaunch* best = nullptr;
  size_t best_equal = 0;
  for (const MeasuredLaunch* m : candidates) {
    const std::vector<uint64_t>& words = launches[m->launch].words;
    size_t equal = 1;
    std::vector<bool> fits(words.size());
    for (size_t i = 0; i < words.size(); ++i) {
      const bool pointer = m->named[i].bytes != 0;
      fits[i] = pointer && named[i].bytes == m->named[i].bytes &&
                launch.words[i] - named[i].address == words[i] - m->named[i].address;
      equal += fits[i] || (!pointer && words[i] == launch.words[i]) ? 1 : 0;
    }
    uint64_t fitting = 0, unnamed = 0;
    bool misfit = false;
    for (const PortablePiece& p : m->pieces) {
      const bool fit = std::any_of(p.words.begin(), p.words.end(), [&fits](size_t i) { return fits[i]; });
      misfit = misfit || (!fit && !p.words.empty());
      (fit ? fitting : unnamed) += p.bytes;
    }
    if (!misfit && unnamed * 20 <= fitting && equal > best_equal) {
      best_equal = equal;
      best = m;
    }
  }
  return best;
}

}  // namespace sluice::trace
