#include "hooklib/libraries/extents/torch_kernels.h"

#include <algorithm>
#include <cstring>

#include "hooklib/libraries/extents/region.h"

namespace sluice::libraries {

namespace {

using Family = TorchKernel::Family;

constexpr uint64_t kPageBytes = 65536;  // the least that the driver migrates for a touched byte
// Beside a dense range, the driver prefetches up to half of a 2 MiB block. In recorded traces, sets of this unit hold
// 100.00 % of the bytes that foreach launches touched, and 1.3 % more; sets of pages hold 98.8 %.
constexpr uint64_t kHalfBlockBytes = uint64_t{1} << 20;
constexpr uint64_t kChunkElements = 65536;  // of a foreach kernel's block
constexpr uint32_t kMaxDims = 25;           // of an OffsetCalculator
constexpr uint32_t kStridesAt = 4 + 12 * kMaxDims;
constexpr uint64_t kMaxElementBytes = 16;     // complex<double>
constexpr uint64_t kScalarReachBytes = 4096;  // around a functor's own pointers: they point at scalars

template <typename T>
T At(const void* at, uint64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(at) + offset, sizeof value);
  return value;
}

constexpr uint32_t RoundUp(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

Reach ReachOf(uint64_t pointer, uint64_t begin, uint64_t end, uint64_t unit) {
  if (end > Reach::kAll / 2) return {pointer};
  return {pointer, begin / unit * unit, (end + unit - 1) / unit * unit};
}

// Removes the mangled name of an element's type from the front of `text` and returns the element's bytes. 0: unknown.
uint8_t TakeElement(std::string_view* text) {
  static constexpr struct {
    std::string_view name;
    uint8_t bytes;
  } kTypes[] = {{"N3c108BFloat16E", 2},
                {"N3c104HalfE", 2},
                {"N3c107complexIfEE", 8},
                {"N3c107complexIdEE", 16},
                {"N3c107complexINS1_4HalfEEE", 4},
                {"N3c1015Float8_e4m3fnuzE", 1},
                {"N3c1015Float8_e5m2fnuzE", 1},
                {"N3c1013Float8_e4m3fnE", 1},
                {"N3c1011Float8_e5m2E", 1},
                {"f", 4},
                {"d", 8},
                {"b", 1},
                {"a", 1},
                {"h", 1},
                {"s", 2},
                {"t", 2},
                {"i", 4},
                {"j", 4},
                {"l", 8},
                {"m", 8}};
  for (const auto& [name, bytes] : kTypes) {
    if (!text->starts_with(name)) continue;
    text->remove_prefix(name.size());
    return bytes;
  }
  return 0;
}

// Moves `text` behind the first `word`. False where there is none.
bool SkipPast(std::string_view* text, std::string_view word) {
  const size_t at = text->find(word);
  if (at == text->npos) return false;
  text->remove_prefix(at + word.size());
  return true;
}

// Capacities of the struct, which is sized for 4 KiB of parameters or, with CUDA 13, for 32 KiB. Tensors for one to
// five lists: without scalars, with a scalar for each tensor, with scalars of 16 bytes.
struct ListCapacity {
  uint16_t without_scalars[5], with_scalars[5], with_wide[2];
  uint16_t blocks;
  uint8_t index;
};
constexpr ListCapacity kListCapacities[] = {
    {{110, 64, 48, 36, 30}, {96, 64, 48, 36, 30}, {72, 60}, 320, 1},
    {{770, 448, 336, 252, 210}, {672, 448, 336, 252, 210}, {504, 420}, 2240, 2}};

TorchKernel RecogniseForeach(std::string_view name, uint32_t bytes) {
  bool scalars = false, fused = false;
  uint32_t scalar = 0;
  if (SkipPast(&name, "28TensorListScalarListMetadataI")) {
    scalars = true;
    scalar = TakeElement(&name);
    if (!scalar) return {};
  } else if (SkipPast(&name, "32FusedOptimizerTensorListMetadataI")) {
    fused = true;
  } else if (!SkipPast(&name, "18TensorListMetadataI")) {
    return {};
  }
  if (!name.starts_with("Li") || name.size() < 4 || name[2] < '1' || name[2] > '5' || name[3] != 'E') return {};
  const auto lists = static_cast<uint32_t>(name[2] - '0');
  for (const ListCapacity& capacity : kListCapacities) {
    uint32_t slots = capacity.without_scalars[lists - 1];
    if (scalars) slots = scalar == 16 && lists <= 2 ? capacity.with_wide[lists - 1] : capacity.with_scalars[lists - 1];
    TorchKernel k;
    uint32_t end = 8 * slots * (lists + 1);  // addresses, then sizes
    if (scalars) end = RoundUp(end, scalar) + scalar * slots;
    if (fused) {
      k.steps = end;
      end += 8 * capacity.with_scalars[lists - 1];
    }
    k.tensor_of = end;
    k.chunk_of = RoundUp(end + capacity.index * capacity.blocks, 4);
    end = k.chunk_of + 4 * capacity.blocks + (scalars ? 0 : 4);
    if (RoundUp(end, scalar == 16 ? 16 : 8) != bytes) continue;
    k.family = Family::kForeach;
    k.operands = static_cast<uint8_t>(lists);
    k.index = capacity.index;
    k.slots = static_cast<uint16_t>(slots);
    k.blocks = capacity.blocks;
    // Functor<T, number...>: all lists are of T. Functor<To, From, ...> and other forms do not say.
    if (SkipPast(&name, "FunctorI")) {
      k.element = TakeElement(&name);
      if (!name.starts_with('L')) k.element = 0;
    }
    return k;
  }
  return {};
}

uint32_t ReadForeach(const TorchKernel& k, const LaunchShape& launch, void* const* parameters,
                     std::vector<Reach>* reaches) {
  const void* const list = parameters[0];
  if (!list || launch.grid[0] > k.blocks || launch.grid[1] != 1 || launch.grid[2] != 1) return 0;
  const size_t before = reaches->size();
  const auto elements = [&](uint32_t tensor) {
    return At<uint64_t>(list, 8 * (uint64_t{k.slots} * k.operands + tensor));
  };
  // Consecutive chunks of one tensor become one range.
  uint32_t tensor = 0;
  uint64_t first = 0, last = 0;
  const auto add_range = [&] {
    if (first == last) return;
    const uint64_t end = std::min(last * kChunkElements, elements(tensor));
    for (uint32_t i = 0; i < k.operands; ++i) {
      const auto pointer = At<uint64_t>(list, 8 * (uint64_t{k.slots} * i + tensor));
      if (k.element) {
        reaches->push_back(
            ReachOf(pointer, pointer + first * kChunkElements * k.element, pointer + end * k.element, kHalfBlockBytes));
      } else {
        reaches->push_back({pointer});
      }
    }
    if (k.steps) reaches->push_back({At<uint64_t>(list, k.steps + 8 * uint64_t{tensor})});
  };
  for (unsigned block = 0; block < launch.grid[0]; ++block) {
    const uint32_t of =
        k.index == 1 ? At<uint8_t>(list, k.tensor_of + block) : At<uint16_t>(list, k.tensor_of + 2 * block);
    const auto chunk = At<int32_t>(list, k.chunk_of + 4 * block);
    const bool fits = of < k.slots && chunk >= 0 && elements(of) < (uint64_t{1} << 48) &&
                      uint64_t(chunk) * kChunkElements < elements(of);
    if (!fits) {
      reaches->resize(before);
      return 0;
    }
    const auto at = static_cast<uint64_t>(chunk);
    if (of == tensor && at == last && first != last) {
      ++last;
      continue;
    }
    add_range();
    tensor = of;
    first = at;
    last = at + 1;
  }
  add_range();
  return 1;
}

// elementwise_kernel(int n, f): f holds an OffsetCalculator<operands>, the operands' pointers, and the captures of the
// user's function.
constexpr uint32_t PointersAt(uint32_t operands) { return RoundUp(kStridesAt + 4 * kMaxDims * operands, 8); }

TorchKernel RecogniseStrided(std::span<const uint32_t> bytes) {
  for (uint32_t operands = 1; operands <= 8; ++operands) {
    const uint32_t min_bytes = PointersAt(operands) + 8 * operands;
    if (bytes[1] < min_bytes || bytes[1] > min_bytes + 64) continue;
    TorchKernel k;
    k.family = Family::kStrided;
    k.operands = static_cast<uint8_t>(operands);
    k.bytes[1] = bytes[1];
    return k;
  }
  return {};
}

// Division by d as a multiplication and a shift: the struct holds d and both.
bool IsDivider(uint32_t d, uint32_t factor, uint32_t shift) {
  uint32_t log2 = 0;
  while (log2 < 32 && (uint64_t{1} << log2) < d) ++log2;
  return d != 0 && shift == log2 &&
         factor == static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << log2) - d) / d + 1);
}

void AddCaptures(const void* parameter, uint32_t from, uint32_t to, std::vector<Reach>* reaches) {
  for (uint32_t at = from; at + 8 <= to; at += 8) {
    const auto word = At<uint64_t>(parameter, at);
    reaches->push_back({word, word, word < Reach::kAll - kScalarReachBytes ? word + kScalarReachBytes : Reach::kAll});
  }
}

uint32_t ReadStrided(const TorchKernel& k, void* const* parameters, std::vector<Reach>* reaches) {
  const void* const f = parameters[1];
  if (!parameters[0] || !f) return 0;
  const auto n = At<int32_t>(parameters[0], 0);
  const auto dims = At<uint32_t>(f, 0);
  if (n <= 0 || dims > static_cast<uint32_t>(Region::kMaxRank)) return 0;
  uint64_t product = 1;
  for (uint32_t d = 0; d < dims; ++d) {
    const uint64_t at = 4 + 12 * uint64_t{d};
    const auto size = At<uint32_t>(f, at);
    if (!IsDivider(size, At<uint32_t>(f, at + 4), At<uint32_t>(f, at + 8))) return 0;
    product *= size;
    if (product > static_cast<uint64_t>(n)) return 0;
  }
  if (product != static_cast<uint64_t>(n)) return 0;
  const size_t before = reaches->size();
  std::vector<Range> ranges;
  for (uint32_t i = 0; i < k.operands; ++i) {
    const auto pointer = At<uint64_t>(f, PointersAt(k.operands) + 8 * i);
    Region region = Region::Bytes(pointer, kMaxElementBytes);
    for (uint32_t d = 0; d < dims; ++d) {
      const auto stride = At<uint32_t>(f, kStridesAt + 4 * (uint64_t{k.operands} * d + i));
      if (stride) region.run = std::min<uint64_t>(region.run, stride);
      region.AddDimension(At<uint32_t>(f, 4 + 12 * uint64_t{d}), stride);
    }
    ranges.clear();
    if (!AppendRanges(region, kPageBytes, 64, &ranges)) {
      reaches->resize(before);
      return 0;
    }
    // Exact to the byte: the policy recognises launches that read a little of many chunks by it.
    for (const Range& range : ranges) reaches->push_back({pointer, range.base, range.end()});
  }
  AddCaptures(f, PointersAt(k.operands) + 8 * k.operands, k.bytes[1], reaches);
  return 2;
}

// vectorized_elementwise_kernel(int n, f, array of pointers), unrolled_elementwise_kernel(the same, more).
uint32_t ReadContiguous(const TorchKernel& k, void* const* parameters, std::vector<Reach>* reaches) {
  if (!parameters[0] || !parameters[1] || !parameters[2]) return 0;
  const auto n = At<int32_t>(parameters[0], 0);
  if (n <= 0) return 0;
  for (uint64_t i = 0; i < k.operands; ++i) {
    const auto pointer = At<uint64_t>(parameters[2], 8 * i);
    reaches->push_back(ReachOf(pointer, pointer, pointer + static_cast<uint64_t>(n) * kMaxElementBytes, kPageBytes));
  }
  AddCaptures(parameters[1], 0, k.bytes[1], reaches);
  return 2 | 4;
}

// reduce_kernel(ReduceOp): its last eight words, behind the configuration and two OffsetCalculators, are the source,
// two destinations, accumulators, the blocks' partial results, semaphores, a number, and flags.
uint32_t ReadReduce(const TorchKernel& k, const LaunchShape& launch, void* const* parameters,
                    std::vector<Reach>* reaches) {
  if (!parameters[0]) return 0;
  uint64_t tail[8];
  std::memcpy(tail, static_cast<const char*>(parameters[0]) + k.bytes[0] - sizeof tail, sizeof tail);
  const uint64_t accumulate = tail[7] & 0xff, final_output = tail[7] >> 8 & 0xff, outputs = tail[7] >> 32;
  if (accumulate > 1 || final_output > 1 || outputs < 1 || outputs > 2 || !tail[0] || !tail[1]) return 0;
  if (outputs == 1 && tail[2]) return 0;
  for (int i = 0; i < 4; ++i) reaches->push_back({tail[i]});
  const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1];
  // PyTorch allocates partial results for each thread of each block; one row of threads writes them.
  const uint64_t partial = blocks * launch.block[0] * k.vector * kMaxElementBytes;
  reaches->push_back(ReachOf(tail[4], tail[4], tail[4] + partial, kPageBytes));
  reaches->push_back({tail[5]});
  return 1;
}

// CatArrayBatchedCopy(output, metadata, ...): the metadata begins with the inputs' addresses. The grid's second
// dimension is their number.
uint32_t ReadCat(const TorchKernel& k, const LaunchShape& launch, void* const* parameters,
                 std::vector<Reach>* reaches) {
  if (!parameters[1] || uint64_t{launch.grid[1]} * 8 > k.bytes[1]) return 0;
  for (unsigned i = 0; i < launch.grid[1]; ++i) reaches->push_back({At<uint64_t>(parameters[1], 8 * uint64_t{i})});
  return 2;
}

bool Has(std::string_view name, std::string_view word) { return name.find(word) != name.npos; }

}  // namespace

TorchKernel RecogniseTorchKernel(std::string_view name, std::span<const uint32_t> bytes) {
  if (!name.starts_with("_Z") || bytes.empty()) return {};
  if (Has(name, "25multi_tensor_apply_kernelI")) return RecogniseForeach(name, bytes[0]);
  const auto make = [&](Family family) {
    TorchKernel k;
    k.family = family;
    for (size_t i = 0; i < 2 && i < bytes.size(); ++i) k.bytes[i] = bytes[i];
    return k;
  };
  if (bytes.size() >= 2 && bytes[0] == 4 && Has(name, "18elementwise_kernelI") && Has(name, "gpu_kernel_impl"))
    return RecogniseStrided(bytes);
  const bool no_strides = Has(name, "29vectorized_elementwise_kernelI") ||
                          (Has(name, "27unrolled_elementwise_kernelI") && Has(name, "23TrivialOffsetCalculatorI") &&
                           !Has(name, "16OffsetCalculatorI"));
  if (no_strides && bytes.size() >= 3 && bytes[0] == 4 && bytes[2] % 8 == 0 && bytes[2] >= 8 && bytes[2] <= 64) {
    TorchKernel k = make(Family::kContiguous);
    k.operands = static_cast<uint8_t>(bytes[2] / 8);
    return k;
  }
  if (std::string_view rest = name; bytes[0] % 8 == 0 && bytes[0] >= 512 && Has(name, "8ReduceOpI") &&
                                    SkipPast(&rest, "13reduce_kernelILi") && SkipPast(&rest, "ELi") &&
                                    rest.size() > 1 && rest[0] >= '1' && rest[0] <= '8' && rest[1] == 'E') {
    TorchKernel k = make(Family::kReduce);
    k.vector = static_cast<uint8_t>(rest[0] - '0');
    return k;
  }
  if (bytes.size() >= 2 && Has(name, "CatArrayBatchedCopy") && Has(name, "25CatArrInputTensorMetadataI"))
    return make(Family::kCat);
  return {};
}

uint32_t ReadTorchKernel(const TorchKernel& kernel, const LaunchShape& launch, void* const* parameters,
                         std::vector<Reach>* reaches) {
  switch (kernel.family) {
    case Family::kForeach:
      return ReadForeach(kernel, launch, parameters, reaches);
    case Family::kStrided:
      return ReadStrided(kernel, parameters, reaches);
    case Family::kContiguous:
      return ReadContiguous(kernel, parameters, reaches);
    case Family::kReduce:
      return ReadReduce(kernel, launch, parameters, reaches);
    case Family::kCat:
      return ReadCat(kernel, launch, parameters, reaches);
    default:
      return 0;
  }
}

}  // namespace sluice::libraries
