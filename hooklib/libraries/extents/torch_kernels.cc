#include "hooklib/libraries/extents/torch_kernels.h"

#include <algorithm>
#include <cstring>

#include "hooklib/libraries/extents/region.h"

namespace sluice::libraries {

namespace {

using Family = TorchKernel::Family;

constexpr uint64_t kPage = 65536;  // what the driver moves for a touched byte at least
// Where a kernel passes densely over a part of a tensor, the driver brings up to half of a 2 MiB block beside it
// (recorded traces: with this unit the sets hold 100.00 % of what foreach launches touched and 1.3 % more, with a page
// 98.8 %).
constexpr uint64_t kHalfBlock = uint64_t{1} << 20;
constexpr uint64_t kChunkElements = 65536;  // of a foreach kernel's block
constexpr uint32_t kMaxDims = 25;           // of an OffsetCalculator
constexpr uint32_t kStridesAt = 4 + 12 * kMaxDims;
constexpr uint64_t kWidest = 16;    // bytes of the widest element (complex<double>)
constexpr uint64_t kScalar = 4096;  // what a functor's own pointer reaches: it points at scalars

template <typename T>
T At(const void* at, uint64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(at) + offset, sizeof value);
  return value;
}

constexpr uint32_t Up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

Reach Part(uint64_t pointer, uint64_t begin, uint64_t end, uint64_t unit) {
  if (end > Reach::kAll / 2) return {pointer};
  return {pointer, begin / unit * unit, (end + unit - 1) / unit * unit};
}

// The mangled name of an element's type at the front of `text`: its bytes, and it is taken off. 0: not known.
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

// Goes behind the first `word`. False where there is none.
bool Pass(std::string_view* text, std::string_view word) {
  const size_t at = text->find(word);
  if (at == text->npos) return false;
  text->remove_prefix(at + word.size());
  return true;
}

// The struct is sized for 4 KiB of parameters, or, with CUDA 13, for 32 KiB. Tensors that fit, by lists; the same with
// a scalar for each; with scalars of 16 bytes.
struct Room {
  uint16_t plain[5], with_scalars[5], with_wide[2];
  uint16_t blocks;
  uint8_t index;
};
constexpr Room kRooms[] = {{{110, 64, 48, 36, 30}, {96, 64, 48, 36, 30}, {72, 60}, 320, 1},
                           {{770, 448, 336, 252, 210}, {672, 448, 336, 252, 210}, {504, 420}, 2240, 2}};

TorchKernel Foreach(std::string_view name, uint32_t bytes) {
  bool scalars = false, fused = false;
  uint32_t scalar = 0;
  if (Pass(&name, "28TensorListScalarListMetadataI")) {
    scalars = true;
    scalar = TakeElement(&name);
    if (!scalar) return {};
  } else if (Pass(&name, "32FusedOptimizerTensorListMetadataI")) {
    fused = true;
  } else if (!Pass(&name, "18TensorListMetadataI")) {
    return {};
  }
  if (!name.starts_with("Li") || name.size() < 4 || name[2] < '1' || name[2] > '5' || name[3] != 'E') return {};
  const auto lists = static_cast<uint32_t>(name[2] - '0');
  for (const Room& room : kRooms) {
    uint32_t slots = room.plain[lists - 1];
    if (scalars) slots = scalar == 16 && lists <= 2 ? room.with_wide[lists - 1] : room.with_scalars[lists - 1];
    TorchKernel k;
    uint32_t end = 8 * slots * (lists + 1);  // addresses, then sizes
    if (scalars) end = Up(end, scalar) + scalar * slots;
    if (fused) {
      k.steps = end;
      end += 8 * room.with_scalars[lists - 1];
    }
    k.tensor_of = end;
    k.chunk_of = Up(end + room.index * room.blocks, 4);
    end = k.chunk_of + 4 * room.blocks + (scalars ? 0 : 4);
    if (Up(end, scalar == 16 ? 16 : 8) != bytes) continue;
    k.family = Family::kForeach;
    k.operands = static_cast<uint8_t>(lists);
    k.index = room.index;
    k.slots = static_cast<uint16_t>(slots);
    k.blocks = room.blocks;
    // Functor<T, number...>: all lists are of T. Functor<To, From, ...> and what else there may be: not told.
    if (Pass(&name, "FunctorI")) {
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
  // Chunks of one tensor that follow each other are one part.
  uint32_t tensor = 0;
  uint64_t first = 0, last = 0;
  const auto end_part = [&] {
    if (first == last) return;
    const uint64_t end = std::min(last * kChunkElements, elements(tensor));
    for (uint32_t i = 0; i < k.operands; ++i) {
      const auto pointer = At<uint64_t>(list, 8 * (uint64_t{k.slots} * i + tensor));
      if (k.element) {
        reaches->push_back(
            Part(pointer, pointer + first * kChunkElements * k.element, pointer + end * k.element, kHalfBlock));
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
    end_part();
    tensor = of;
    first = at;
    last = at + 1;
  }
  end_part();
  return 1;
}

// elementwise_kernel(int n, f): f holds an OffsetCalculator<operands>, the operands' pointers, and what the user's own
// function holds.
constexpr uint32_t PointersAt(uint32_t operands) { return Up(kStridesAt + 4 * kMaxDims * operands, 8); }

TorchKernel Strided(std::span<const uint32_t> bytes) {
  for (uint32_t operands = 1; operands <= 8; ++operands) {
    const uint32_t least = PointersAt(operands) + 8 * operands;
    if (bytes[1] < least || bytes[1] > least + 64) continue;
    TorchKernel k;
    k.family = Family::kStrided;
    k.operands = static_cast<uint8_t>(operands);
    k.bytes[1] = bytes[1];
    return k;
  }
  return {};
}

// Division by d as a multiplication and a shift: the struct holds d and both.
bool Divides(uint32_t d, uint32_t factor, uint32_t shift) {
  uint32_t least = 0;
  while (least < 32 && (uint64_t{1} << least) < d) ++least;
  return d != 0 && shift == least &&
         factor == static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << least) - d) / d + 1);
}

void Captured(const void* parameter, uint32_t from, uint32_t to, std::vector<Reach>* reaches) {
  for (uint32_t at = from; at + 8 <= to; at += 8) {
    const auto word = At<uint64_t>(parameter, at);
    reaches->push_back({word, word, word < Reach::kAll - kScalar ? word + kScalar : Reach::kAll});
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
    if (!Divides(size, At<uint32_t>(f, at + 4), At<uint32_t>(f, at + 8))) return 0;
    product *= size;
    if (product > static_cast<uint64_t>(n)) return 0;
  }
  if (product != static_cast<uint64_t>(n)) return 0;
  const size_t before = reaches->size();
  std::vector<Range> ranges;
  for (uint32_t i = 0; i < k.operands; ++i) {
    const auto pointer = At<uint64_t>(f, PointersAt(k.operands) + 8 * i);
    Region region = Region::Bytes(pointer, kWidest);
    for (uint32_t d = 0; d < dims; ++d) {
      const auto stride = At<uint32_t>(f, kStridesAt + 4 * (uint64_t{k.operands} * d + i));
      if (stride) region.run = std::min<uint64_t>(region.run, stride);
      region.Along(At<uint32_t>(f, 4 + 12 * uint64_t{d}), stride);
    }
    ranges.clear();
    if (!AppendRanges(region, kPage, 64, &ranges)) {
      reaches->resize(before);
      return 0;
    }
    // To the byte: who reads a little of many places is known by it (hooklib/policy/fetch/placement.cc).
    for (const Range& range : ranges) reaches->push_back({pointer, range.base, range.end()});
  }
  Captured(f, PointersAt(k.operands) + 8 * k.operands, k.bytes[1], reaches);
  return 2;
}

// vectorized_elementwise_kernel(int n, f, array of pointers), unrolled_elementwise_kernel(the same, more).
uint32_t ReadPlain(const TorchKernel& k, void* const* parameters, std::vector<Reach>* reaches) {
  if (!parameters[0] || !parameters[1] || !parameters[2]) return 0;
  const auto n = At<int32_t>(parameters[0], 0);
  if (n <= 0) return 0;
  for (uint64_t i = 0; i < k.operands; ++i) {
    const auto pointer = At<uint64_t>(parameters[2], 8 * i);
    reaches->push_back(Part(pointer, pointer, pointer + static_cast<uint64_t>(n) * kWidest, kPage));
  }
  Captured(parameters[1], 0, k.bytes[1], reaches);
  return 2 | 4;
}

// reduce_kernel(ReduceOp): pointers stand at its end, behind the configuration and two OffsetCalculators: source, two
// destinations, accumulators, blocks' partial results, semaphores, a number, flags.
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
  // PyTorch asks for a thread's worth of partial results for each thread of each block; one row of threads writes them.
  const uint64_t partial = blocks * launch.block[0] * k.vector * kWidest;
  reaches->push_back(Part(tail[4], tail[4], tail[4] + partial, kPage));
  reaches->push_back({tail[5]});
  return 1;
}

// CatArrayBatchedCopy(output, metadata, ...): the metadata begins with the inputs' addresses, of which the grid's
// second dimension says how many are in use.
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
  if (Has(name, "25multi_tensor_apply_kernelI")) return Foreach(name, bytes[0]);
  const auto simple = [&](Family family) {
    TorchKernel k;
    k.family = family;
    for (size_t i = 0; i < 2 && i < bytes.size(); ++i) k.bytes[i] = bytes[i];
    return k;
  };
  if (bytes.size() >= 2 && bytes[0] == 4 && Has(name, "18elementwise_kernelI") && Has(name, "gpu_kernel_impl"))
    return Strided(bytes);
  const bool no_strides = Has(name, "29vectorized_elementwise_kernelI") ||
                          (Has(name, "27unrolled_elementwise_kernelI") && Has(name, "23TrivialOffsetCalculatorI") &&
                           !Has(name, "16OffsetCalculatorI"));
  if (no_strides && bytes.size() >= 3 && bytes[0] == 4 && bytes[2] % 8 == 0 && bytes[2] >= 8 && bytes[2] <= 64) {
    TorchKernel k = simple(Family::kContiguous);
    k.operands = static_cast<uint8_t>(bytes[2] / 8);
    return k;
  }
  if (std::string_view rest = name; bytes[0] % 8 == 0 && bytes[0] >= 512 && Has(name, "8ReduceOpI") &&
                                    Pass(&rest, "13reduce_kernelILi") && Pass(&rest, "ELi") && rest.size() > 1 &&
                                    rest[0] >= '1' && rest[0] <= '8' && rest[1] == 'E') {
    TorchKernel k = simple(Family::kReduce);
    k.vector = static_cast<uint8_t>(rest[0] - '0');
    return k;
  }
  if (bytes.size() >= 2 && Has(name, "CatArrayBatchedCopy") && Has(name, "25CatArrInputTensorMetadataI"))
    return simple(Family::kCat);
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
      return ReadPlain(kernel, parameters, reaches);
    case Family::kReduce:
      return ReadReduce(kernel, launch, parameters, reaches);
    case Family::kCat:
      return ReadCat(kernel, launch, parameters, reaches);
    default:
      return 0;
  }
}

}  // namespace sluice::libraries
