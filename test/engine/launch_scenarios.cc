// Every kind of launch: the memory that its parameters name is resident when it runs.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "test/engine/scenario.h"

extern "C" CUresult cuLaunchCooperativeKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                                   unsigned, unsigned, CUstream, void**);
extern "C" CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig*, CUfunction, void**, void**);

namespace scenario {

namespace {

// PyTorch's foreach kernels take this struct by value (hooklib/libraries/extents/torch_kernels.h).
struct TensorList {
  uint64_t addresses[1][110];
  int64_t numel_for_tensor[110];
  uint8_t block_to_tensor[320];
  int block_to_chunk[320];
  int start_tensor_this_launch;
};
static_assert(sizeof(TensorList) == 3368);
constexpr const char* kForeach =
    "_ZN2at6native25multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_"
    "21BinaryOpScalarFunctorIfLi1ELi1ELi0EEE"
    "JSt10multipliesIfEfEEEvT_T0_DpT1_";

}  // namespace

SCENARIO(every_kind_of_launch) {
  Card card;
  constexpr uint64_t kOperand = 16 * kMiB, kRest = 640 * kMiB;
  const CUdeviceptr operand = Alloc(kOperand), rest = Alloc(kRest), list = Alloc(256 * kMiB);
  card.Named(nullptr, {Write(operand, kOperand)});
  card.Named(nullptr, {Write(list, 256 * kMiB)});
  card.Named(nullptr, {Write(rest, kRest)});
  const bool is_pressed = Budget() != 0 && Budget() < kRest;
  // The rest fills the GPU. Then `launch`, for which `touch` must be resident: the simulated GPU ends the process
  // otherwise. At most `max_bytes` are fetched for it.
  const auto check = [&](const char* what, const simgpu_touch& touch, uint64_t max_bytes, auto launch) {
    card.Named(nullptr, {Read(rest, kRest)});
    card.Named(nullptr, {Read(rest, kRest)});
    OK(cuCtxSynchronize());
    const uint64_t before = card.Stats().prefetch_in_bytes;
    simgpu_next_launch(&touch, 1, 20000, is_pressed ? SIMGPU_MUST_BE_RESIDENT : 0);
    OK(launch());
    OK(cuCtxSynchronize());
    const uint64_t fetched = card.Stats().prefetch_in_bytes - before;
    std::fprintf(stderr, "%s fetched_mib=%" PRIu64 "\n", what, fetched / kMiB);
    EXPECT(fetched <= max_bytes);
  };
  std::array<uint64_t, 8> words{0, operand + 4096};
  std::array<void*, 8> parameters{};
  for (size_t i = 0; i < 8; ++i) parameters.at(i) = &words.at(i);
  size_t bytes = sizeof words;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {2, 1, 1};
  CUlaunchConfig config{};
  config.gridDimX = 2;
  config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  const simgpu_touch update = Update(operand, kOperand);
  const uint64_t max_bytes = kOperand + 4 * kMiB;
  void** const p = parameters.data();
  check("kernel", update, max_bytes,
        [&] { return cuLaunchKernel(card.eight, 1, 1, 1, 1, 1, 1, 0, nullptr, p, nullptr); });
  check("a buffer", update, max_bytes,
        [&] { return cuLaunchKernel(card.eight, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra); });
  check("cooperative", update, max_bytes,
        [&] { return cuLaunchCooperativeKernel(card.eight, 1, 1, 1, 1, 1, 1, 0, nullptr, p); });
  check("cooperative, per thread", update, max_bytes,
        [&] { return cuLaunchCooperativeKernel_ptsz(card.eight, 1, 1, 1, 1, 1, 1, 0, nullptr, p); });
  check("clusters", update, max_bytes, [&] { return cuLaunchKernelEx(&config, card.eight, p, nullptr); });
  check("clusters, per thread", update, max_bytes,
        [&] { return cuLaunchKernelEx_ptsz(&config, card.eight, p, nullptr); });

  // Four chunks in the middle of the second of three tensors; the others are named and not touched.
  CUmodule module = nullptr;
  CUfunction foreach = nullptr;
  OK(cuModuleLoadData(&module,
                      (std::string("simgpu-module 1\nkernel ") + kForeach + " params 3368,1,1,4 ns 20000\n").c_str()));
  OK(cuModuleGetFunction(&foreach, module, kForeach));
  TensorList tensors;
  std::memset(&tensors, 0x5a, sizeof tensors);
  for (uint64_t t = 0; t < 3; ++t) {
    tensors.addresses[0][t] = list + t * 64 * kMiB;
    tensors.numel_for_tensor[t] = 16 << 20;
  }
  for (int block = 0; block < 4; ++block) {
    tensors.block_to_tensor[block] = 1;
    tensors.block_to_chunk[block] = 100 + block;
  }
  char none = 0;
  float scale = 2;
  void* foreach_parameters[] = {&tensors, &none, &none, &scale};
  check("foreach", Update(list + 64 * kMiB + 100 * 65536 * 4, 4 * 65536 * 4), 4 * kMiB,
        [&] { return cuLaunchKernel(foreach, 4, 1, 1, 512, 1, 1, 0, nullptr, foreach_parameters, nullptr); });

  // A TMA descriptor by value: a tensor of 16 rows of 1 MiB within the list's block.
  CUfunction tma = nullptr;
  OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel tma params 8,128 ns 20000\n"));
  OK(cuModuleGetFunction(&tma, module, "tma"));
  CUtensorMap map;
  const cuuint64_t dims[] = {512 << 10, 16}, strides[] = {kMiB};
  const cuuint32_t box[] = {64, 16}, steps[] = {1, 1};
  OK(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<void*>(list + 32 * kMiB), dims,
                            strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  uint64_t number = 7;
  void* tma_parameters[] = {&number, &map};
  const auto launch_tma = [&] { return cuLaunchKernel(tma, 1, 1, 1, 1, 1, 1, 0, nullptr, tma_parameters, nullptr); };
  check("tensor map", Read(list + 32 * kMiB, 16 * kMiB), 20 * kMiB, launch_tma);
  OK(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(list + 160 * kMiB)));
  check("tensor map, moved", Read(list + 160 * kMiB, 16 * kMiB), 20 * kMiB, launch_tma);
  // The same kinds for convolutions: images of 1 MiB, 16 of them, with padding around; then rows of them.
  const cuuint64_t images[] = {64, 64, 64, 16}, image_strides[] = {256, 256 * 64, kMiB};
  const int lower[] = {-1, -1}, upper[] = {1, 1};
  const cuuint32_t every[] = {1, 1, 1, 1};
  OK(cuTensorMapEncodeIm2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, reinterpret_cast<void*>(list + 96 * kMiB),
                             images, image_strides, lower, upper, 64, 128, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                             CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  check("tensor map, im2col", Read(list + 96 * kMiB, 16 * kMiB), 20 * kMiB, launch_tma);
  OK(cuTensorMapEncodeIm2colWide(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, reinterpret_cast<void*>(list + 200 * kMiB),
                                 images, image_strides, -1, 1, 64, 128, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  check("tensor map, im2col along rows", Read(list + 200 * kMiB, 16 * kMiB), 20 * kMiB, launch_tma);
  OK(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(list + 8 * kMiB)));
  check("tensor map, im2col, moved", Read(list + 8 * kMiB, 16 * kMiB), 20 * kMiB, launch_tma);
  PrintDigest("operand", operand, kOperand);
  PrintDigest("list", list, 256 * kMiB);
}

// Launches of a kind that is left to faults queue nothing. The host waits for the end of those before, but no event
// says when that is, unless the wait records one: it would wait until its patience is over.
SCENARIO(launches_left_to_faults_see_their_ends) {
  Card card;
  CUstream s = card.Stream();
  constexpr uint64_t kTable = 2 * kGiB, kRow = 64 << 10;
  const CUdeviceptr table = Alloc(kTable), small = Alloc(kMiB);
  card.Named(s, {Write(table, kTable, 1)}, 1'000'000);
  OK(cuStreamSynchronize(s));
  double longest = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    card.Named(s, {Read(table + i / 100 * kRow, 4096)}, i < 160 ? 5'000 : 3'000'000);
    longest = std::max(longest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    for (int n = 0; n < 12; ++n) OK(cuMemsetD8Async(small, 1, kMiB, s));  // other work, which moves nothing
    if (i < 160) OK(cuStreamSynchronize(s));
  }
  std::fprintf(stderr, "longest_launch_s=%.2f\n", longest);
  EXPECT(longest < 0.8);
  PrintDigest("table", table, kTable);
}

// Calls that the engine serves itself are barriers in the legacy stream, as the driver's are.
SCENARIO(served_calls_in_the_legacy_stream) {
  Card card;
  CUmemLocation gpu{};
  gpu.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUstream streams[2] = {};
  for (CUstream& s : streams) OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
  const CUdeviceptr managed = card.Managed(kMiB);
  const CUdeviceptr p[] = {Alloc(200 * kMiB), Alloc(200 * kMiB), Alloc(200 * kMiB)};
  for (uint32_t i = 0; i < 24; ++i) {
    const uint32_t to = i % 3, from = (i + 2) % 3;
    card.Named(streams[i % 2], {Update(p[to], 200 * kMiB, to + 1), Read(p[from], 200 * kMiB, from + 1)}, 5'000'000);
    if (i % 4 < 2) {
      OK(cuStreamAttachMemAsync(nullptr, managed, 0, CU_MEM_ATTACH_GLOBAL));
    } else {
      OK(cuMemPrefetchAsync(managed, kMiB, gpu, 0, nullptr));
    }
  }
  for (const CUdeviceptr at : p) PrintDigest("block", at, 200 * kMiB);
}

}  // namespace scenario
