// PyTorch's elementwise, reduction and concatenation kernels: their structs, filled as PyTorch fills them, against the
// index formulas of the kernels.
#include "hooklib/libraries/extents/torch_kernels.h"

#include <catch2/catch_test_macros.hpp>
#include <cstring>

#include "test/libraries/random.h"
#include "test/libraries/torch_memory.h"

namespace sluice::libraries {
namespace {

using test::Foreach;
using test::kMiB;
using test::kScalarKernel;
using test::kStridedKernel;
using test::Memory;
using test::Random;
using Family = TorchKernel::Family;

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
  uint64_t function;  // a capture of the user's function
};

template <int operands>
void CheckStrided(Random& r) {
  using Parameters = Strided<operands>;
  const uint32_t sizes[] = {4, sizeof(Parameters)};
  const TorchKernel kernel = RecogniseTorchKernel(kStridedKernel, sizes);
  REQUIRE(kernel.family == Family::kStrided);
  REQUIRE(kernel.operands == operands);
  for (int round = 0; round < 300; ++round) {
    Parameters f;
    std::memset(static_cast<void*>(&f), 0x7f, sizeof f);  // slots of absent dimensions hold any values
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
    f.function = Memory::Base(0) + 300 * kMiB;  // a value of an earlier call
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
    // A capture of the function reaches a page, not the tensor around it.
    REQUIRE(memory.Bytes(reaches) < 200 * kMiB);
    const auto refuses = [&](auto change) {
      Parameters bad = f;
      int m = n;
      change(bad, m);
      void* wrong[] = {&m, &bad};
      std::vector<Reach> none;
      CHECK(ReadTorchKernel(kernel, {{8, 1, 1}, {128, 1, 1}}, wrong, &none) == 0);
      CHECK(none.empty());
    };
    refuses([](Parameters&, int& m) { ++m; });
    refuses([](Parameters&, int& m) { m = -m; });
    refuses([](Parameters& bad, int&) { bad.calculator.dims = 26; });
    if (f.calculator.dims > 0) refuses([](Parameters& bad, int&) { bad.calculator.sizes[0].m1 += 1; });
    if (f.calculator.dims > 0) refuses([](Parameters& bad, int&) { bad.calculator.sizes[0].divisor = 0; });
  }
}

TEST_CASE("a kernel over strided operands touches the bytes of its OffsetCalculator") {
  Random r(4);
  CheckStrided<1>(r);
  CheckStrided<2>(r);
  CheckStrided<3>(r);
  CheckStrided<4>(r);
}

TEST_CASE("a slice of a cache in rows far apart is its rows, not the cache") {
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
  // Two numbers with padding, which holds a value of the stack: an address in the middle of a tensor.
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

TEST_CASE("a reduction's pointers are at its struct's end, and its partial results are bounded by its blocks") {
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

TEST_CASE("invalid names and sizes are read safely with any values in the parameters: 200,000 launches") {
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
