// PyTorch's structs as its kernels take them, filled as it fills them, and held against what the kernels' own index
// formulas touch.
#include "hooklib/libraries/extents/torch_kernels.h"

#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <map>
#include <memory>

#include "test/libraries/oracle.h"

namespace sluice::libraries {
namespace {

using test::Random;
using Family = TorchKernel::Family;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr const char* kScalarKernel =
    "_ZN2at6native57_GLOBAL__N__e658eeb9_24_ForeachBinaryOpScalar_cu_86b9896c25multi_tensor_apply_kernelINS1_"
    "18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorIN3c108BFloat16ELi1ELi1ELi0EEEJSt10multipliesIfEfEEEvT_T0_"
    "DpT1_";

std::string Foreach(const std::string& metadata, const std::string& functor) {
  return "_ZN2at6native50_GLOBAL__N__b6ca21f8_17_ForeachUnaryOp_cu_77fe623d25multi_tensor_apply_kernelINS1_" +
         metadata + "NS1_" + functor + "EEvT_T0_DpT1_";
}

template <int lists, int tensors, int blocks, typename Index>
struct TensorList {
  const void* addresses[lists][tensors];
  int64_t numel_for_tensor[tensors];
  Index block_to_tensor[blocks];
  int block_to_chunk[blocks];
  int start_tensor_this_launch;
};
template <typename Scalar, int lists, int tensors, int blocks, typename Index>
struct TensorScalarList {
  const void* addresses[lists][tensors];
  int64_t numel_for_tensor[tensors];
  Scalar scalar_vals[tensors];
  Index block_to_tensor[blocks];
  int block_to_chunk[blocks];
};
template <int lists, int tensors, int steps, int blocks, typename Index>
struct FusedList {
  const void* addresses[lists][tensors];
  int64_t numel_for_tensor[tensors];
  const void* state_steps_addresses[steps];
  Index block_to_tensor[blocks];
  int block_to_chunk[blocks];
  int start_tensor_this_launch;
};
struct alignas(16) Complex {
  double real, imaginary;
};

// Tensors far apart, so that an address says which it is of.
struct Memory {
  static constexpr uint64_t kFirst = uint64_t{1} << 44, kApart = uint64_t{1} << 33;
  static uint64_t Base(uint64_t tensor) { return kFirst + tensor * kApart; }
  std::map<uint64_t, uint64_t> bytes;  // base -> size

  // What a reach means, as the engine takes it: held to the tensor that its pointer lies in.
  bool Clip(const Reach& reach, uint64_t* begin, uint64_t* end) const {
    auto it = bytes.upper_bound(reach.pointer);
    if (it == bytes.begin()) return false;
    --it;
    if (reach.pointer >= it->first + it->second) return false;
    *begin = std::max(reach.begin, it->first);
    *end = std::min(reach.end, it->first + it->second);
    return *begin < *end;
  }
  bool Covers(const std::vector<Reach>& reaches, uint64_t first, uint64_t last) const {  // [first, last)
    for (bool more = true; more && first < last;) {
      more = false;
      for (const Reach& reach : reaches) {
        uint64_t begin, end;
        if (Clip(reach, &begin, &end) && begin <= first && first < end) first = end, more = true;
      }
    }
    return first >= last;
  }
  uint64_t Bytes(const std::vector<Reach>& reaches) const {
    uint64_t sum = 0, begin, end;
    for (const Reach& reach : reaches) sum += Clip(reach, &begin, &end) ? end - begin : 0;
    return sum;
  }
};

// One launch of a foreach kernel as multi_tensor_apply makes it: tensors cut into chunks, a block for each, as many as
// fit; slots behind the last tensor hold what an earlier launch left there.
template <typename List>
void CheckForeach(const std::string& name, uint64_t element, bool told, Random& r) {
  constexpr auto kLists = sizeof(List::addresses) / sizeof(List::addresses[0]);
  constexpr auto kTensors = sizeof(List::numel_for_tensor) / 8;
  constexpr auto kBlocks = sizeof(List::block_to_chunk) / 4;
  constexpr bool kFused = requires(List l) { l.state_steps_addresses; };
  INFO(name);
  const uint32_t sizes[] = {sizeof(List), 1, 1, 4};
  const TorchKernel kernel = RecogniseTorchKernel(name, sizes);
  REQUIRE(kernel.family == Family::kForeach);
  CHECK(kernel.operands == kLists);
  CHECK(kernel.slots == kTensors);
  CHECK(kernel.blocks == kBlocks);
  CHECK(kernel.element == (told ? element : 0));
  for (int round = 0; round < 20; ++round) {
    auto list = std::make_unique<List>();
    std::memset(static_cast<void*>(list.get()), 0x5a, sizeof(List));
    Memory memory;
    struct Touch {
      uint64_t first, last;
    };
    std::vector<Touch> touches;
    uint64_t number = 0;
    size_t block = 0;
    const auto used = static_cast<size_t>(r.In(1, kTensors));
    for (size_t t = 0; t < kTensors; ++t) {
      const auto elements = static_cast<uint64_t>(r.In(1, r.OneIn(3) ? 3'000'000 : 5000));
      const auto of = static_cast<int64_t>(elements);
      list->numel_for_tensor[t] = of;
      for (size_t i = 0; i < kLists; ++i) {
        const uint64_t base = Memory::Base(number++);
        memory.bytes[base] = elements * element;
        list->addresses[i][t] = reinterpret_cast<const void*>(base);
      }
      if constexpr (kFused) {
        const uint64_t base = Memory::Base(number++);
        memory.bytes[base] = 4;
        list->state_steps_addresses[t % (sizeof list->state_steps_addresses / 8)] = reinterpret_cast<const void*>(base);
      }
      if (t >= used) continue;
      // The first tensor may be the rest of one that began in an earlier launch.
      const int chunks = static_cast<int>((elements + 65535) / 65536);
      for (int chunk = t == 0 && r.OneIn(2) ? chunks / 2 : 0; chunk < chunks && block < kBlocks; ++chunk, ++block) {
        list->block_to_tensor[block] = static_cast<std::remove_reference_t<decltype(list->block_to_tensor[0])>>(t);
        list->block_to_chunk[block] = chunk;
        const uint64_t begin = static_cast<uint64_t>(chunk) * 65536, end = std::min(begin + 65536, elements);
        for (size_t i = 0; i < kLists; ++i) {
          const auto base = reinterpret_cast<uint64_t>(list->addresses[i][t]);
          touches.push_back({base + begin * element, base + end * element});
        }
        if constexpr (kFused) {
          const auto step = reinterpret_cast<uint64_t>(list->state_steps_addresses[t]);
          touches.push_back({step, step + 4});
        }
      }
    }
    void* parameters[] = {list.get(), nullptr, nullptr, nullptr};
    std::vector<Reach> reaches;
    const LaunchShape shape{{static_cast<unsigned>(block), 1, 1}, {512, 1, 1}};
    REQUIRE(ReadTorchKernel(kernel, shape, parameters, &reaches) == 1);
    uint64_t truth = 0;
    for (const auto& [first, last] : touches) {
      REQUIRE(memory.Covers(reaches, first, last));
      truth += last - first;
    }
    // Less than 1 MiB at each end of a tensor's part is more than what is touched, and nothing of an unnamed tensor.
    if (told) CHECK(memory.Bytes(reaches) <= truth + 2 * kMiB * kLists);

    // What disagrees with itself is not read.
    const auto refuses = [&](auto change, LaunchShape other = {{1, 1, 1}, {512, 1, 1}}) {
      List bad = *list;
      change(bad);
      void* wrong[] = {&bad, nullptr, nullptr, nullptr};
      std::vector<Reach> none;
      CHECK(ReadTorchKernel(kernel, other, wrong, &none) == 0);
      CHECK(none.empty());
    };
    refuses([](List& bad) { bad.block_to_chunk[0] = -1; });
    refuses([](List& bad) { bad.block_to_chunk[0] = 1 << 20; });
    refuses([](List& bad) { bad.numel_for_tensor[bad.block_to_tensor[0]] = -5; });
    if (kTensors < 200) refuses([](List& bad) { bad.block_to_tensor[0] = 250; });
    refuses([](List&) {}, {{kBlocks + 1, 1, 1}, {512, 1, 1}});
    refuses([](List&) {}, {{1, 2, 1}, {512, 1, 1}});
  }
}

TEST_CASE("a foreach kernel touches the chunks that its blocks name, in every size of the struct") {
  Random r(3);
  CheckForeach<TensorList<1, 110, 320, uint8_t>>(kScalarKernel, 2, true, r);
  CheckForeach<TensorList<2, 64, 320, uint8_t>>(
      Foreach("18TensorListMetadataILi2EEE", "14UnaryOpFunctorIfLi2ELi1ELi1EEEJNS0_4SqrtIfEEE"), 4, true, r);
  CheckForeach<TensorList<3, 48, 320, uint8_t>>(
      Foreach("18TensorListMetadataILi3EEE", "24PointwiseOpScalarFunctorIdLi3ELi3ELi0EEEJSt10multipliesIdEdE"), 8, true,
      r);
  CheckForeach<TensorScalarList<float, 1, 96, 320, uint8_t>>(
      Foreach("28TensorListScalarListMetadataIfLi1EEE",
              "25BinaryOpScalarListFunctorIN3c104HalfELi1ELi1ELi0EEEJSt7dividesIfEE"),
      2, true, r);
  CheckForeach<TensorScalarList<double, 3, 48, 320, uint8_t>>(
      Foreach("28TensorListScalarListMetadataIdLi3EEE",
              "28PointwiseOpScalarListFunctorIdLi3ELi3ELi0EEEJSt7dividesIdEE"),
      8, true, r);
  CheckForeach<TensorScalarList<Complex, 1, 72, 320, uint8_t>>(
      Foreach("28TensorListScalarListMetadataIN3c107complexIdEELi1EEE",
              "25BinaryOpScalarListFunctorIN3c107complexIdEELi1ELi1ELi0EEEJSt7dividesIS6_EE"),
      16, true, r);
  CheckForeach<FusedList<4, 36, 36, 320, uint8_t>>(
      Foreach("32FusedOptimizerTensorListMetadataILi4EEE",
              "20FusedAdamMathFunctorIfLi4ELNS0_9ADAM_MODEE0ELb0EEEJPKfdddd"),
      4, true, r);
  // CUDA 13: room for 32 KiB.
  CheckForeach<TensorList<1, 770, 2240, uint16_t>>(kScalarKernel, 2, true, r);
  CheckForeach<TensorScalarList<float, 2, 448, 2240, uint16_t>>(
      Foreach("28TensorListScalarListMetadataIfLi2EEE", "25BinaryOpScalarListFunctorIfLi2ELi1ELi1EEEJSt7dividesIfEE"),
      4, true, r);
  // Lists of two types, and a type that the name gives by reference only: whole tensors, but only those that are named.
  CheckForeach<TensorList<2, 64, 320, uint8_t>>(
      Foreach("18TensorListMetadataILi2EEE", "11CopyFunctorIfN3c108BFloat16ELi2ELi1ELi1EEEJNS0_4CopyIffEEE"), 4, false,
      r);
  CheckForeach<TensorList<2, 64, 320, uint8_t>>(
      Foreach("18TensorListMetadataILi2EEE", "14UnaryOpFunctorIS5_Li2ELi1ELi1EEEJNS0_4SqrtIfEEE"), 4, false, r);
}

TEST_CASE("a struct of another size, or another kernel, is left as it is") {
  const auto family = [](const char* name, std::vector<uint32_t> bytes) {
    return RecogniseTorchKernel(name, bytes).family;
  };
  CHECK(family(kScalarKernel, {3368}) == Family::kForeach);
  CHECK(family(kScalarKernel, {3376}) == Family::kNone);
  CHECK(family(kScalarKernel, {}) == Family::kNone);
  CHECK(family("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", {1720}) == Family::kNone);
  CHECK(family("", {8}) == Family::kNone);
  CHECK(family("_ZN2at6native25multi_tensor_apply_kernelI", {3368}) == Family::kNone);
  CHECK(family("_ZN2at6native25multi_tensor_apply_kernelI18TensorListMetadataILi", {3368}) == Family::kNone);
  CHECK(family("_ZN2at6native25multi_tensor_apply_kernelI18TensorListMetadataILi9EEE", {3368}) == Family::kNone);
}

// --- kernels over strided operands ---

struct Divider {
  uint32_t divisor = 1, m1 = 1, shift = 0;
  Divider() = default;
  explicit Divider(uint32_t d) : divisor(d) {
    for (shift = 0; shift < 32; ++shift) {
      if ((uint64_t{1} << shift) >= d) break;
    }
    m1 = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
};
template <int operands>
struct Strided {
  struct {
    int dims;
    Divider sizes[25];
    uint32_t strides[25][operands];
  } calculator;
  char* data[operands];
  uint64_t function;  // what the user's function holds
};
constexpr const char* kStridedKernel =
    "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaERNS_"
    "18TensorIteratorBaseEENKUlvE1_clEvENKUlvE10_clEvEUlN3c108BFloat16EE_EEvS4_RKT_EUliE_EEviT1_";

template <int operands>
void CheckStrided(Random& r) {
  using S = Strided<operands>;
  const uint32_t sizes[] = {4, sizeof(S)};
  const TorchKernel kernel = RecogniseTorchKernel(kStridedKernel, sizes);
  REQUIRE(kernel.family == Family::kStrided);
  REQUIRE(kernel.operands == operands);
  for (int round = 0; round < 300; ++round) {
    S f;
    std::memset(static_cast<void*>(&f), 0x7f, sizeof f);  // slots of dimensions that are not there hold anything
    f.calculator.dims = static_cast<int>(r.In(0, 4));
    int n = 1;
    uint32_t counts[4];
    for (int d = 0; d < f.calculator.dims; ++d) {
      counts[d] = static_cast<uint32_t>(r.In(1, 9));
      f.calculator.sizes[d] = Divider(counts[d]);
      n *= static_cast<int>(counts[d]);
      for (auto& stride : f.calculator.strides[d])
        stride = static_cast<uint32_t>(4 * r.In(0, r.OneIn(2) ? 200'000 : 40));
    }
    Memory memory;
    for (int i = 0; i < operands; ++i) {
      memory.bytes[Memory::Base(static_cast<uint64_t>(i))] = 512 * kMiB;
      f.data[i] =
          reinterpret_cast<char*>(Memory::Base(static_cast<uint64_t>(i)) + 64 * static_cast<uint64_t>(r.In(0, 1000)));
    }
    f.function = Memory::Base(0) + 300 * kMiB;  // rest of an earlier call
    void* parameters[] = {&n, &f};
    std::vector<Reach> reaches;
    REQUIRE(ReadTorchKernel(kernel, {{8, 1, 1}, {128, 1, 1}}, parameters, &reaches) == 2);
    for (int index = 0; index < n; ++index) {
      for (int i = 0; i < operands; ++i) {
        auto at = reinterpret_cast<uint64_t>(f.data[i]);
        uint32_t rest = static_cast<uint32_t>(index);
        for (int d = 0; d < f.calculator.dims; ++d) {
          at += uint64_t{rest % counts[d]} * f.calculator.strides[d][i];
          rest /= counts[d];
        }
        REQUIRE(memory.Covers(reaches, at, at + 4));
      }
    }
    // A word of the function's own reaches a page, not the tensor around it.
    REQUIRE(memory.Bytes(reaches) < 200 * kMiB);
    const auto refuses = [&](auto change) {
      S bad = f;
      int m = n;
      change(bad, m);
      void* wrong[] = {&m, &bad};
      std::vector<Reach> none;
      CHECK(ReadTorchKernel(kernel, {{8, 1, 1}, {128, 1, 1}}, wrong, &none) == 0);
      CHECK(none.empty());
    };
    refuses([](S&, int& m) { ++m; });
    refuses([](S&, int& m) { m = -m; });
    refuses([](S& bad, int&) { bad.calculator.dims = 26; });
    if (f.calculator.dims > 0) refuses([](S& bad, int&) { bad.calculator.sizes[0].m1 += 1; });
    if (f.calculator.dims > 0) refuses([](S& bad, int&) { bad.calculator.sizes[0].divisor = 0; });
  }
}

TEST_CASE("a kernel over strided operands touches what its OffsetCalculator reaches") {
  Random r(4);
  CheckStrided<1>(r);
  CheckStrided<2>(r);
  CheckStrided<3>(r);
  CheckStrided<4>(r);
}

TEST_CASE("a slice of a cache that lies in rows far apart is its rows, not the cache") {
  Strided<2> f{};
  f.calculator.dims = 2;
  f.calculator.sizes[0] = Divider(128);
  f.calculator.sizes[1] = Divider(16);
  const uint32_t strides[2][2] = {{2, 2}, {262144, 256}};
  std::memcpy(f.calculator.strides, strides, sizeof strides);
  f.data[0] = reinterpret_cast<char*>(Memory::Base(0) + 8 * kMiB);
  f.data[1] = reinterpret_cast<char*>(Memory::Base(1));
  int n = 2048;
  void* parameters[] = {&n, &f};
  const uint32_t sizes[] = {4, sizeof f};
  std::vector<Reach> reaches;
  REQUIRE(ReadTorchKernel(RecogniseTorchKernel(kStridedKernel, sizes), {{4, 1, 1}, {128, 1, 1}}, parameters,
                          &reaches) == 2);
  Memory memory;
  memory.bytes = {{Memory::Base(0), 192 * kMiB}, {Memory::Base(1), 4096}};
  CHECK(memory.Bytes(reaches) == 16 * 256 + 4096);
}

TEST_CASE("a kernel over contiguous operands touches n elements, and scalars behind its function's pointers") {
  const char* name =
      "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_13BinaryFunctorIN3c108BFloat16ES4_S4_ZNS0_67_GLOBAL__N__"
      "06c19b41_28_ActivationThresholdKernel_cu_751192d7_1581121threshold_kernel_implIS4_EEvRNS_18TensorIteratorBaseET_"
      "S9_EUlS4_S4_E_EESt5arrayIPcLm3EEEEviT0_T1_";
  const uint32_t sizes[] = {4, 16, 24};
  const TorchKernel kernel = RecogniseTorchKernel(name, sizes);
  REQUIRE(kernel.family == Family::kContiguous);
  int n = 1 << 20;
  Memory memory;
  for (uint64_t i = 0; i < 4; ++i) memory.bytes[Memory::Base(i)] = 256 * kMiB;
  // Two numbers, and what the stack held between them: an address in the middle of a tensor.
  uint64_t function[] = {Memory::Base(3) + 224 * kMiB, 7};
  uint64_t data[] = {Memory::Base(0), Memory::Base(1) + 2 * kMiB, Memory::Base(2)};
  void* parameters[] = {&n, function, data};
  std::vector<Reach> reaches;
  REQUIRE(ReadTorchKernel(kernel, {{1024, 1, 1}, {128, 1, 1}}, parameters, &reaches) == 6);
  CHECK(memory.Covers(reaches, Memory::Base(0), Memory::Base(0) + 16 * kMiB));
  CHECK(memory.Covers(reaches, Memory::Base(1) + 2 * kMiB, Memory::Base(1) + 18 * kMiB));
  CHECK(memory.Covers(reaches, function[0], function[0] + 8));
  CHECK(memory.Bytes(reaches) <= 3 * 16 * kMiB + 4096);
  n = 0;
  reaches.clear();
  CHECK(ReadTorchKernel(kernel, {{1024, 1, 1}, {128, 1, 1}}, parameters, &reaches) == 0);
  CHECK(RecogniseTorchKernel(
            "_ZN2at6native27unrolled_elementwise_kernelIZ16OffsetCalculatorI23TrivialOffsetCalculatorI", sizes)
            .family == Family::kNone);
}

TEST_CASE("a reduction's pointers stand at its struct's end; what its blocks share is held to their number") {
  const char* name =
      "_ZN2at6native13reduce_kernelILi128ELi4ENS0_8ReduceOpIN3c108BFloat16ENS0_14func_wrapper_tIS4_ZNS0_11sum_"
      "functorIS4_"
      "fS4_EclERNS_14TensorIteratorEEUlffE_EEjS4_Li4ELi8EEEEEvT1_";
  struct Reduce {
    uint64_t before[123];  // configuration and calculators, with an address of an earlier call
    uint64_t source, destination[2], accumulators, partial, semaphores, base;
    bool accumulate, final_output;
    int outputs;
  } reduce{};
  static_assert(sizeof(Reduce) == 1048);
  const uint32_t sizes[] = {sizeof reduce};
  const TorchKernel kernel = RecogniseTorchKernel(name, sizes);
  REQUIRE(kernel.family == Family::kReduce);
  Memory memory;
  for (uint64_t i = 0; i < 5; ++i) memory.bytes[Memory::Base(i)] = 96 * kMiB;
  reduce.before[53] = Memory::Base(4);
  reduce.source = Memory::Base(0);
  reduce.destination[0] = Memory::Base(1);
  reduce.partial = Memory::Base(2);
  reduce.semaphores = Memory::Base(3);
  reduce.final_output = true;
  reduce.outputs = 1;
  void* parameters[] = {&reduce};
  const LaunchShape shape{{48, 32, 1}, {32, 4, 1}};
  std::vector<Reach> reaches;
  REQUIRE(ReadTorchKernel(kernel, shape, parameters, &reaches) == 1);
  for (uint64_t i : {0, 1, 3}) CHECK(memory.Covers(reaches, Memory::Base(i), Memory::Base(i) + 96 * kMiB));
  // A float for each result of each thread of a row, for each block: recorded as touched, 0.75 MiB.
  CHECK(memory.Covers(reaches, Memory::Base(2), Memory::Base(2) + 48 * 32 * 32 * 4 * 4));
  CHECK(memory.Bytes(reaches) <= 3 * 96 * kMiB + 4 * kMiB);
  reduce.outputs = 3;
  reaches.clear();
  CHECK(ReadTorchKernel(kernel, shape, parameters, &reaches) == 0);
  CHECK(reaches.empty());
}

TEST_CASE("a concatenation reads as many inputs as its grid is high") {
  const char* name =
      "_ZN2at6native40_GLOBAL__N__0f1a8107_8_Shape_cu_49f7391c19CatArrayBatchedCopyINS1_"
      "10OpaqueTypeILj2EEEjLi4ELi64ELi64EE"
      "EvPT_NS1_25CatArrInputTensorMetadataIS5_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_";
  struct Metadata {
    uint64_t inputs[64];
    uint32_t offset[64], size[64], elements[64];
    char rest[2112];
  } metadata{};
  static_assert(sizeof metadata == 3392);
  for (uint64_t& input : metadata.inputs) input = Memory::Base(9);
  for (uint64_t i = 0; i < 3; ++i) metadata.inputs[i] = Memory::Base(i);
  const uint32_t sizes[] = {8, sizeof metadata, 32, 4, 4};
  const TorchKernel kernel = RecogniseTorchKernel(name, sizes);
  REQUIRE(kernel.family == Family::kCat);
  void* parameters[] = {nullptr, &metadata, nullptr, nullptr, nullptr};
  std::vector<Reach> reaches;
  REQUIRE(ReadTorchKernel(kernel, {{264, 3, 1}, {512, 1, 1}}, parameters, &reaches) == 2);
  CHECK(reaches == std::vector<Reach>{{Memory::Base(0)}, {Memory::Base(1)}, {Memory::Base(2)}});
  CHECK(ReadTorchKernel(kernel, {{264, 4000, 1}, {512, 1, 1}}, parameters, &reaches) == 0);
}

TEST_CASE("names and sizes without sense are left alone, whatever the parameters hold") {
  Random r(5);
  const std::string names[] = {kScalarKernel, kStridedKernel,
                               Foreach("28TensorListScalarListMetadataIfLi1EEE", "25BinaryOpScalarListFunctorIfLi1E"),
                               "_ZN2at6native13reduce_kernelILi128ELi4ENS0_8ReduceOpIN3c108BFloat16E",
                               "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_"};
  std::vector<uint64_t> noise(4096);
  std::vector<Reach> reaches;
  for (int round = 0; round < 200'000; ++round) {
    std::string name = names[r.In(0, 4)];
    if (r.OneIn(2)) name.resize(static_cast<size_t>(r.In(0, static_cast<int64_t>(name.size()))));
    if (r.OneIn(4) && !name.empty()) name[static_cast<size_t>(r.In(0, static_cast<int64_t>(name.size()) - 1))] = 'E';
    static constexpr uint32_t kSizes[] = {3368, 3520, 26000, 1048, 4, 536, 16, 24};
    const uint32_t sizes[] = {kSizes[r.In(0, 7)], kSizes[r.In(0, 7)], kSizes[r.In(0, 7)]};
    const TorchKernel kernel = RecogniseTorchKernel(name, sizes);
    if (kernel.family == Family::kNone) continue;
    for (int i = 0; i < 64; ++i)
      noise[static_cast<size_t>(r.In(0, 4095))] = r.OneIn(2) ? r.Next() : static_cast<uint64_t>(r.In(0, 5));
    void* parameters[] = {noise.data(), r.OneIn(9) ? nullptr : noise.data() + 8, noise.data() + 16};
    reaches.clear();
    ReadTorchKernel(kernel, {{static_cast<unsigned>(r.In(1, 400)), 1, 1}, {128, 1, 1}}, parameters, &reaches);
  }
}

}  // namespace
}  // namespace sluice::libraries
