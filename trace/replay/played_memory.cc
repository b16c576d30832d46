#include "played_memory.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <set>

namespace sluice::replay {

using trace::Access;
using trace::AccessRange;
using trace::Range;

namespace {

constexpr uint32_t kTouchBoth = SIMGPU_READ | SIMGPU_WRITE;

uint32_t TouchOf(Access access) {
  switch (access) {
    case Access::kRead:
      return SIMGPU_READ;
    case Access::kWrite:
      return SIMGPU_WRITE;
    default:
      return kTouchBoth;
  }
}

}  // namespace

void PlayedMemory::AddBlock(uint64_t address, const Block& block) {
  blocks_[address] = block;
  if (block.kind != trace::AllocKind::kHost) tensors_[address] = {block.bytes, 0, {}};
}

PlayedMemory::Block PlayedMemory::RemoveBlock(uint64_t address) {
  const auto it = blocks_.find(address);
  if (it == blocks_.end()) return {};
  const Block block = it->second;
  if (!block.reported) tensors_.erase(address);
  blocks_.erase(it);
  return block;
}

void PlayedMemory::Report(uint64_t address, int64_t bytes) {
  if (bytes <= 0) {
    tensors_.erase(address);
    return;
  }
  if (const auto block = FindBlock(address); block != blocks_.end() && !block->second.reported) {
    tensors_.erase(block->first);
    blocks_.at(block->first).reported = true;
  }
  tensors_[address] = {static_cast<uint64_t>(bytes), next_object_++, {}};
}

std::map<uint64_t, PlayedMemory::Block>::const_iterator PlayedMemory::FindBlock(uint64_t address) const {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return blocks_.end();
  --it;
  return address - it->first < it->second.bytes ? it : blocks_.end();
}

std::map<uint64_t, PlayedMemory::Tensor>::const_iterator PlayedMemory::FindTensor(uint64_t address) const {
  auto it = tensors_.upper_bound(address);
  if (it == tensors_.begin()) return tensors_.end();
  --it;
  return address - it->first < it->second.bytes ? it : tensors_.end();
}

uint64_t PlayedMemory::Translate(uint64_t address) const {
  const auto it = FindBlock(address);
  return it == blocks_.end() ? address : it->second.played + (address - it->first);
}

// A recorded range may extend past a block's end (pages) or over several blocks.
void PlayedMemory::AddTouch(uint64_t address, uint64_t bytes, uint32_t access, bool name_object,
                            std::vector<simgpu_touch>& out) const {
  const uint64_t end = address + bytes;
  auto block = blocks_.upper_bound(address);
  if (block != blocks_.begin()) --block;
  for (; block != blocks_.end() && block->first < end; ++block) {
    const uint64_t first = std::max(address, block->first), last = std::min(end, block->first + block->second.bytes);
    if (first >= last) continue;
    uint32_t object = 0;
    if (name_object) {
      const auto tensor = FindTensor(first);
      if (tensor != tensors_.end()) object = tensor->second.object;
    }
    out.push_back({block->second.played + (first - block->first), last - first, access, object});
  }
}

// Adds a range of the truth column. Bytes of a tensor, or of a block without reported tensors, that were untouched
// since its allocation can only have been written, whatever the recorded direction: fresh memory may hold anything. So
// can bytes of no tensor in a block whose tensors are reported. Other bytes keep the recorded direction.
void PlayedMemory::AddTruth(uint64_t address, uint64_t bytes, Access access, std::vector<simgpu_touch>& out) const {
  const uint64_t end = address + bytes;
  const uint32_t touch = TouchOf(access);
  while (address < end) {
    const auto found = FindTensor(address);
    if (found == tensors_.end()) {
      const auto next = tensors_.upper_bound(address);
      const auto block = FindBlock(address);
      uint64_t until = next == tensors_.end() ? end : std::min(end, next->first);
      const bool is_known = block != blocks_.end();
      if (is_known) until = std::min(until, block->first + block->second.bytes);
      AddTouch(address, until - address, is_known && block->second.reported ? SIMGPU_WRITE : touch, false, out);
      address = until;
      continue;
    }
    const std::map<uint64_t, uint64_t>& written = found->second.written;
    const uint64_t until = std::min(end, found->first + found->second.bytes);
    auto part = written.upper_bound(address);
    if (part != written.begin() && std::prev(part)->second > address) --part;
    for (; address < until && part != written.end() && part->first < until; ++part) {
      if (address < part->first) AddTouch(address, part->first - address, SIMGPU_WRITE, false, out);
      address = std::max(address, part->first);
      const uint64_t stop = std::min(until, part->second);
      AddTouch(address, stop - address, touch, false, out);
      address = stop;
    }
    AddTouch(address, until - address, SIMGPU_WRITE, false, out);
    address = until;
  }
}

void PlayedMemory::NoteWritten(uint64_t address, uint64_t bytes) {
  const uint64_t end = address + bytes;
  while (address < end) {
    const auto found = FindTensor(address);
    if (found == tensors_.end()) {
      const auto next = tensors_.upper_bound(address);
      if (next == tensors_.end()) return;
      address = next->first;
      continue;
    }
    std::map<uint64_t, uint64_t>& written = tensors_.at(found->first).written;
    const uint64_t until = std::min(end, found->first + found->second.bytes);
    auto first_part = written.upper_bound(address);
    if (first_part != written.begin() && std::prev(first_part)->second >= address) --first_part;
    auto part = first_part;
    uint64_t first = address, last = until;
    for (; part != written.end() && part->first <= until; ++part) {
      first = std::min(first, part->first);
      last = std::max(last, part->second);
    }
    written.erase(first_part, part);
    written[first] = last;
    address = until;
  }
}

void PlayedMemory::AddTouches(const trace::Launch& launch, std::vector<simgpu_touch>& out) {
  const bool exact = (trace_.flags & trace::kFlagSynthetic) != 0;
  std::vector<std::pair<uint64_t, uint64_t>> touched;
  // A launch may name the same bytes by several parameters: all of them find them as they were before it.
  const auto add = [&](uint64_t address, uint64_t bytes, Access access) {
    AddTruth(address, bytes, access, out);
    touched.emplace_back(address, bytes);
  };
  if (exact || !launch.has_truth) {
    for (const AccessRange& range : launch.accesses) {
      if (exact) {
        AddTouch(range.address, range.bytes, TouchOf(range.access), name_objects_, out);
      } else {
        add(range.address, range.bytes, range.access);
      }
    }
  }
  if (out.empty() && launch.has_truth) {
    for (const Range& page : launch.truth) add(page.address, page.bytes, page.access);
  } else if (out.empty()) {
    // Without truth and access set: the whole tensors, or blocks, that the parameters point into; each once. A pointer
    // into freed memory was left over from an earlier call.
    std::set<uint64_t> seen;
    for (const uint64_t word : launch.words) {
      if (const auto tensor = FindTensor(word); tensor != tensors_.end()) {
        if (seen.insert(tensor->first).second) add(tensor->first, tensor->second.bytes, Access::kUnknown);
      } else if (const auto block = FindBlock(word); block != blocks_.end() && !block->second.reported) {
        if (seen.insert(block->first).second) AddTouch(block->first, block->second.bytes, kTouchBoth, false, out);
      }
    }
  }
  for (const auto& [address, bytes] : touched) NoteWritten(address, bytes);
}

// A matrix product reads each operand once for every row of tiles of the other dimension. Of three matrices m x k,
// k x n and m x n, the dimension that one lacks is the root of the others' product over its own size. This matters only
// where an operand is read over the link. (H200, experiments/probes: a product of 2,048 rows reads its weights 8.0
// times; one of 8,192 columns reads its rows 32.0 times. Convolutions read more often, by a factor of the profile.)
simgpu_kernel PlayedMemory::Kind(const trace::Launch& launch, std::vector<simgpu_touch>& touches) const {
  const std::string& name = trace_.functions[launch.function].name;
  const auto holds = [&name](std::initializer_list<const char*> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](const char* p) { return name.find(p) != std::string::npos; });
  };
  const bool convolution = holds({"fprop", "dgrad", "wgrad"});
  if (!convolution && !holds({"gemm", "nvjet", "cutlass", "xmma", "flash", "fmha"})) {
    if (holds({"multi_tensor_apply"})) return SIMGPU_LISTS;
    if (holds({"elementwise", "transform_input", "backward_elemt", "Padding", "CatArray"})) return SIMGPU_ELEMENTWISE;
    return holds({"reduce", "norm", "oftmax"}) ? SIMGPU_REDUCTION : SIMGPU_UNKNOWN;
  }
  std::map<uint64_t, double> sizes;  // by tensor
  const auto owner = [this](const simgpu_touch& touch) {
    // Addresses differ from the recorded ones, but each block is played as a whole.
    for (const auto& [recorded, block] : blocks_) {
      if (touch.address - block.played < block.bytes) {
        const uint64_t address = recorded + (touch.address - block.played);
        const auto tensor = FindTensor(address);
        return tensor != tensors_.end() ? tensor->first : recorded;
      }
    }
    return uint64_t{0};
  };
  for (const simgpu_touch& touch : touches) sizes[owner(touch)] += static_cast<double>(touch.length) / 2;  // elements
  std::vector<double> largest;
  largest.reserve(sizes.size());
  for (const auto& [tensor, elements] : sizes) largest.push_back(elements);
  std::sort(largest.rbegin(), largest.rend());
  if (largest.size() < 3) return convolution ? SIMGPU_CONVOLUTION : SIMGPU_PRODUCT;
  for (simgpu_touch& touch : touches) {
    const double own = sizes[owner(touch)];
    if (own < largest[2]) continue;
    const double others = largest[0] * largest[1] * largest[2] / own;
    const double passes = std::ceil(std::sqrt(others / own) / 256);
    touch.access |= SIMGPU_PASSES(static_cast<uint32_t>(std::clamp(passes, 1.0, 1000.0)));
  }
  if (convolution) return SIMGPU_CONVOLUTION;
  constexpr double kMaxFewRows = 64;
  return std::sqrt(largest[1] * largest[2] / largest[0]) < kMaxFewRows ? SIMGPU_FEW_ROWS : SIMGPU_PRODUCT;
}

}  // namespace sluice::replay
