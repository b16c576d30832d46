// PyTorch's foreach kernels: their structs, filled as PyTorch fills them, against the index formulas of the kernels.
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <memory>
#include <string>

#include "hooklib/libraries/extents/torch_kernels.h"
#include "test/libraries/random.h"
#include "test/libraries/torch_memory.h"

namespace sluice::libraries {
namespace {

using test::Foreach;
using test::kMiB;
using test::kScalarKernel;
using test::Memory;
using test::Random;
using Family = TorchKernel::Family;

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

// One launch of a foreach kernel as multi_tensor_apply makes it: tensors are cut into chunks, a block for each, as many
// as fit. Slots behind the last tensor hold values of an earlier launch.
template <typename List>
void CheckForeach(const std::string& name, uint64_t element, bool known_element, Random& r) {
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
  CHECK(kernel.element == (known_element ? element : 0));
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
    // The reaches exceed the touched bytes by less than 1 MiB at each end, and hold nothing of an unnamed tensor.
    if (known_element) CHECK(memory.Bytes(reaches) <= truth + 2 * kMiB * kLists);

    // A struct whose values disagree is not read.
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
  // CUDA 13: 32 KiB of parameters.
  CheckForeach<TensorList<1, 770, 2240, uint16_t>>(kScalarKernel, 2, true, r);
  CheckForeach<TensorScalarList<float, 2, 448, 2240, uint16_t>>(
      Foreach("28TensorListScalarListMetadataIfLi2EEE", "25BinaryOpScalarListFunctorIfLi2ELi1ELi1EEEJSt7dividesIfEE"),
      4, true, r);
  // Lists of two types, and a type that the name has by reference only: whole tensors, but only the named ones.
  CheckForeach<TensorList<2, 64, 320, uint8_t>>(
      Foreach("18TensorListMetadataILi2EEE", "11CopyFunctorIfN3c108BFloat16ELi2ELi1ELi1EEEJNS0_4CopyIffEEE"), 4, false,
      r);
  CheckForeach<TensorList<2, 64, 320, uint8_t>>(
      Foreach("18TensorListMetadataILi2EEE", "14UnaryOpFunctorIS5_Li2ELi1ELi1EEEJNS0_4SqrtIfEEE"), 4, false, r);
}

TEST_CASE("a struct of another size and another kernel are not recognised") {
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

}  // namespace
}  // namespace sluice::libraries
