#include "shadow.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace sluice::truth {

using trace::Access;
using trace::AccessRange;
using trace::AccessSource;

namespace {

constexpr uint64_t kGranule = 512;
constexpr uint64_t kMaxGranules = uint64_t{32} << 20;  // 16 GiB, more than any recorded launch touches
constexpr uint64_t kRunPageBytes = 65536;
constexpr size_t kMaxRunsInPage = 4;  // more runs in a page are merged into one

constexpr uint8_t kChanged = 1, kWasFilled = 2;

}  // namespace

void Shadow::Try(CUresult result, const char* action) {
  if (result == CUDA_SUCCESS || !on_) return;
  on_ = false;
  std::fprintf(stderr, "sluice-truth: no directions: %s: error %d\n", action, static_cast<int>(result));
}

void Shadow::Load(const char* cubin) {
  std::ifstream in(cubin, std::ios::binary);
  const std::string image((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (image.empty()) {
    std::fprintf(stderr, "sluice-truth: no directions: %s is empty or missing\n", cubin);
    return;
  }
  on_ = true;
  CUmodule module = nullptr;
  Try(cuModuleLoadData(&module, image.c_str()), "loading changes.cu");
  if (on_) Try(cuModuleGetFunction(&kernel_, module, "changes"), "finding its kernel");
  if (on_) Try(cuMemAlloc(&flags_, kMaxGranules), "memory for flags");
  if (!on_) return;
  // Granules: filled and changed, filled and kept, mixed and changed in its last word, mixed and kept, zero and
  // changed.
  constexpr size_t kWords = kGranule / 4;
  std::vector<uint32_t> before(5 * kWords), now;
  for (size_t i = 0; i < 4 * kWords; ++i) before[i] = i < 2 * kWords ? 0x7fc07fc0 : static_cast<uint32_t>(i);
  now = before;
  now[3] = 1;
  now[3 * kWords - 1] = 1;
  now[4 * kWords + 7] = 1;
  CUdeviceptr memory = 0;
  const size_t bytes = before.size() * 4;
  Try(cuMemAlloc(&memory, 2 * bytes), "memory for the check");
  if (!on_) return;
  Try(cuMemcpyHtoD(memory, now.data(), bytes), "copying");
  Try(cuMemcpyHtoD(memory + bytes, before.data(), bytes), "copying");
  for (const std::vector<uint8_t>& expected :
       {std::vector<uint8_t>{3, 2, 1, 0, 1}, std::vector<uint8_t>{0, 2, 0, 0, 0}}) {
    Compare(memory, memory + bytes, expected.size(), 0);
    host_flags_.assign(expected.size(), 0xff);
    Try(cuMemcpyDtoH(host_flags_.data(), flags_, expected.size()), "reading flags");
    if (on_ && host_flags_ != expected) {
      on_ = false;
      std::fprintf(stderr, "sluice-truth: no directions: the comparison of known bytes failed\n");
    }
  }
  cuMemFree(memory);
}

void Shadow::Follow(uint64_t address, uint64_t bytes, bool copy) {
  if (!on_) return;
  const uint64_t whole = (bytes + kGranule - 1) / kGranule * kGranule;
  CUdeviceptr at = 0;
  Try(cuMemAlloc(&at, whole), "memory for a copy");
  if (!on_) return;
  Try(copy ? cuMemcpyDtoD(at, address, bytes) : cuMemsetD8(at, 0, whole), "making a copy");
  copies_[address] = {bytes, at};
}

void Shadow::Forget(uint64_t address) {
  const auto it = copies_.find(address);
  if (it == copies_.end()) return;
  Try(cuMemFree(it->second.at), "freeing a copy");
  copies_.erase(it);
}

void Shadow::Refresh(uint64_t address, uint64_t bytes) {
  if (!on_) return;
  auto copy = copies_.upper_bound(address);
  if (copy == copies_.begin()) return;
  --copy;
  if (address - copy->first >= copy->second.bytes) return;
  const uint64_t offset = address - copy->first;
  Try(cuMemcpyDtoD(copy->second.at + offset, address, std::min(bytes, copy->second.bytes - offset)),
      "a copy's refresh");
}

void Shadow::Compare(CUdeviceptr now, CUdeviceptr before, uint64_t granules, uint64_t first) {
  CUdeviceptr flags = flags_ + first;
  void* parameters[] = {&now, &before, &flags, &granules};
  const auto blocks = static_cast<unsigned>(std::min<uint64_t>((granules + 7) / 8, 2048));
  Try(cuLaunchKernel(kernel_, blocks, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr), "comparing");
}

std::vector<AccessRange> Shadow::Changed(const std::vector<AccessRange>& touched) {
  if (!on_) return {};
  // Ranges as whole granules of one block each, none twice.
  std::vector<AccessRange> pieces;
  for (const AccessRange& range : touched) {
    auto copy = copies_.upper_bound(range.address);
    if (copy != copies_.begin()) --copy;
    for (; copy != copies_.end() && copy->first < range.address + range.bytes; ++copy) {
      const uint64_t block_end = copy->first + (copy->second.bytes + kGranule - 1) / kGranule * kGranule;
      const uint64_t first = std::max(range.address, copy->first) / kGranule * kGranule;
      const uint64_t last = std::min((range.address + range.bytes + kGranule - 1) / kGranule * kGranule, block_end);
      if (first < last) pieces.push_back({first, last - first, Access::kUnknown, AccessSource::kParameters});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  uint64_t granules = 0, end = 0;
  for (AccessRange& piece : pieces) {
    const uint64_t skip = end > piece.address ? std::min(end - piece.address, piece.bytes) : 0;
    piece.address += skip;
    piece.bytes -= skip;
    end = std::max(end, piece.address + piece.bytes);
    if (granules + piece.bytes / kGranule > kMaxGranules) {
      std::fprintf(stderr, "sluice-truth: a launch touched more than can be compared\n");
      piece.bytes = 0;
    }
    if (piece.bytes == 0) continue;
    const auto copy = std::prev(copies_.upper_bound(piece.address));
    Compare(piece.address, copy->second.at + (piece.address - copy->first), piece.bytes / kGranule, granules);
    granules += piece.bytes / kGranule;
  }
  if (granules == 0) return {};
  host_flags_.assign(granules, 0);
  Try(cuMemcpyDtoH(host_flags_.data(), flags_, granules), "reading flags");
  if (!on_) return {};

  std::vector<AccessRange> changed;
  size_t page_begin = 0;  // in `changed`: the first run of the page
  uint64_t at = 0, page = UINT64_MAX;
  const auto close_page = [&] {
    if (changed.size() - page_begin <= kMaxRunsInPage) return;
    AccessRange all = changed[page_begin];
    all.bytes = changed.back().address + changed.back().bytes - all.address;
    for (size_t i = page_begin; i < changed.size(); ++i) {
      if (changed[i].access == Access::kReadWrite) all.access = Access::kReadWrite;
    }
    changed.resize(page_begin);
    changed.push_back(all);
  };
  for (const AccessRange& piece : pieces) {
    for (uint64_t g = 0; g < piece.bytes / kGranule; ++g, ++at) {
      if ((host_flags_[at] & kChanged) == 0) continue;
      const uint64_t address = piece.address + g * kGranule;
      const Access access = (host_flags_[at] & kWasFilled) != 0 ? Access::kWrite : Access::kReadWrite;
      if (address / kRunPageBytes != page) {
        close_page();
        page = address / kRunPageBytes;
        page_begin = changed.size();
      }
      if (changed.size() > page_begin && changed.back().access == access &&
          changed.back().address + changed.back().bytes == address) {
        changed.back().bytes += kGranule;
      } else {
        changed.push_back({address, kGranule, access, AccessSource::kParameters});
      }
    }
  }
  close_page();
  // Merge runs across pages.
  std::vector<AccessRange> joined;
  for (const AccessRange& run : changed) {
    if (!joined.empty() && joined.back().access == run.access &&
        joined.back().address + joined.back().bytes == run.address) {
      joined.back().bytes += run.bytes;
    } else {
      joined.push_back(run);
    }
  }
  return joined;
}

}  // namespace sluice::truth
