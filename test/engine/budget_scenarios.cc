// The sizes that a program sees, and allocations beyond budget and limit.
#include <dlfcn.h>
#include <nvml.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

SCENARIO(sizes_show_the_fraction) {
  Card card;
  size_t left = 0, total = 0, other = 0;
  const CUdeviceptr p = Alloc(100 * kMiB), q = Alloc(1000);
  OK(cuMemGetInfo(&left, &total));
  OK(cuDeviceTotalMem(&other, 0));
  EXPECT(total == other);
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  EXPECT(nvml != nullptr);
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory{};
  EXPECT(reinterpret_cast<decltype(&nvmlInit_v2)>(dlsym(nvml, "nvmlInit_v2"))() == NVML_SUCCESS);
  EXPECT(reinterpret_cast<decltype(&nvmlDeviceGetHandleByIndex_v2)>(dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(
             0, &device) == NVML_SUCCESS);
  EXPECT(reinterpret_cast<decltype(&nvmlDeviceGetMemoryInfo)>(dlsym(nvml, "nvmlDeviceGetMemoryInfo"))(
             device, &memory) == NVML_SUCCESS);
  if (Budget() != 0) {
    EXPECT(total == Budget());
    EXPECT(memory.total == total);
    EXPECT(memory.free == left);
    EXPECT(memory.used == total - left);
    EXPECT(memory.used >= 100 * kMiB + 1000);
    EXPECT(memory.used <= 103 * kMiB);
  }
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(cuMemGetAddressRange(&base, &bytes, p + 5000));
  EXPECT(base == p && bytes == 100 * kMiB);
  unsigned type = 0, managed = 9;
  unsigned long long id = 0, other_id = 0;
  void* host = nullptr;
  bool ipc = true;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5));
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
  OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
  OK(cuPointerGetAttribute(&other_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, q));
  EXPECT(type == CU_MEMORYTYPE_DEVICE);
  EXPECT(managed == 0);
  EXPECT(id != other_id);
  EXPECT(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, p) == CUDA_ERROR_INVALID_VALUE);
  if (Budget() != 0) {
    OK(cuPointerGetAttribute(&ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    EXPECT(!ipc);
  }
  OK(cuMemFree(p));
  EXPECT(cuMemGetAddressRange(&base, &bytes, p) == CUDA_ERROR_NOT_FOUND);
  const CUdeviceptr again = Alloc(100 * kMiB);
  unsigned long long again_id = 0;
  OK(cuPointerGetAttribute(&again_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, again));
  EXPECT(again_id != id && again_id != other_id);
  // The memory's block ends with it, too: programs cache registrations by these numbers.
  if (Budget() != 0) {
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, again));
    OK(cuPointerGetAttribute(&other_id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, q));
    EXPECT(id != other_id);
  }
}

// Allocates until it is refused, and uses none of the memory.
SCENARIO(allocation_until_refused) {
  Card card;
  size_t blocks = 0;
  CUdeviceptr at = 0;
  while (blocks < 200 && cuMemAlloc(&at, 64 * kMiB) == CUDA_SUCCESS) ++blocks;
  std::fprintf(stderr, "blocks %zu\n", blocks);
}

// Beyond the limit CUDA's out-of-memory code and nothing else; the program frees some blocks and tries again.
SCENARIO(out_of_memory_then_retry) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  CUdeviceptr at = 0;
  CUresult result = CUDA_SUCCESS;
  while (p.size() < 200 && (result = cuMemAlloc(&at, 64 * kMiB)) == CUDA_SUCCESS) {
    p.push_back(at);
    card.Named(s, {Write(at, 64 * kMiB, 1)});
  }
  EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
  std::fprintf(stderr, "blocks %zu\n", p.size());
  for (int i = 0; i < 4; ++i) {
    OK(cuMemFree(p.back()));
    p.pop_back();
  }
  at = Alloc(128 * kMiB);
  card.Named(s, {Write(at, 128 * kMiB, 2)});
  PrintDigest("after the retry", at, 128 * kMiB);
}

// Bytes beyond the guarantee need host memory, which the agent grants late, or never (SCENARIO_REFUSED).
SCENARIO(share_that_arrives_late) {
  Card card;
  const bool refused = std::getenv("SCENARIO_REFUSED") != nullptr;
  const CUresult wanted = refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  CUdeviceptr p = 0;
  for (int i = 0; i < 2; ++i) EXPECT(cuMemAlloc(&p, 256 * kMiB) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) EXPECT(cuMemAlloc(&p, 128 * kMiB) == wanted);
}

// Two of four blocks fit; the budget is being raised when the other two are used.
SCENARIO(budget_raised_between_launches) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(Alloc(64 * kMiB));
  for (int i = 0; i < 4; ++i) {
    card.Named(s, {Update(blocks[i], 64 * kMiB)});
    OK(cuStreamSynchronize(s));
    if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

// Work that is queued behind a host function runs over the budget. The process has nothing more to do: its excess ends.
SCENARIO(excess_of_an_idle_process_ends) {
  constexpr uint64_t kBytes = 64 * kMiB;
  Card card;
  const CUstream s = card.Stream();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back(Alloc(kBytes));
  for (const CUdeviceptr block : blocks) OK(cuMemsetD8Async(block, 1, kBytes, s));
  OK(cuStreamSynchronize(s));
  static std::atomic<bool> goes_on{false};
  const auto wait = [](void*) {
    while (!goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  OK(cuLaunchHostFunc(s, wait, nullptr));
  for (int i = 0; i < 96; ++i) card.Named(s, {Update(blocks[static_cast<size_t>(i) % 24], kBytes, 1)});
  goes_on = true;
  OK(cuStreamSynchronize(s));
  const auto resident = [&] {
    uint64_t bytes = 0;
    for (const CUdeviceptr block : blocks) bytes += simgpu_resident_bytes(block, kBytes);
    return bytes;
  };
  std::fprintf(stderr, "resident_mib=%llu\n", static_cast<unsigned long long>(resident() / kMiB));
  for (int i = 0; i < 200 && Budget() != 0 && resident() > Budget(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    OK(cuStreamQuery(s));
  }
  if (Budget() != 0) EXPECT(resident() <= Budget());
  for (const CUdeviceptr block : blocks) PrintDigest("block", block, kBytes);
}
