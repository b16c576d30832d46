// Programs that cut their blocks out of one allocation. No parameter shows which part a launch uses, and the engine
// learns it from the pages that fault.
#include <thread>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBlock = 64 * kMiB;
constexpr size_t kBlocks = 24;

struct Pool {
  Card card;
  CUstream stream = card.Stream();
  CUdeviceptr all = Alloc(kBlocks * kBlock);

  CUdeviceptr At(size_t block) const { return all + block % kBlocks * kBlock; }
  // Uses so many bytes of each block in turn.
  void Iterate(uint64_t bytes, size_t first = 0) {
    for (size_t i = first; i < kBlocks; ++i)
      card.Named(stream, {Update(At(i), bytes, static_cast<uint32_t>(i + 1))}, 100'000);
    OK(cuStreamSynchronize(stream));
  }
  // Several iterations, and the bytes that faults bring in them.
  void IterateAndPrint(int n, uint64_t bytes, const char* phase) {
    const uint64_t before = card.Stats().fault_bytes;
    for (int i = 0; i < n; ++i) Iterate(bytes);
    std::fprintf(stderr, "pool phase=%s fault_mib=%.0f resident_mib=%.0f\n", phase,
                 static_cast<double>(card.Stats().fault_bytes - before) / 0x1p20,
                 static_cast<double>(card.Stats().resident_bytes) / 0x1p20);
  }
  void PrintDigests() const {
    for (size_t i = 0; i < kBlocks; ++i) PrintDigest("block", At(i), kBlock);
  }
};

// Launches reach their matrices through a table on the GPU: nothing names them. A third is used all the time.
SCENARIO(matrices_by_a_table) {
  constexpr int kMatrices = 48, kHot = 16, kSteps = 2000;
  constexpr uint64_t kBytes = 16 * kMiB;
  Card card;
  std::vector<CUdeviceptr> matrices;
  for (uint32_t i = 0; i < kMatrices; ++i) {
    matrices.push_back(Alloc(kBytes));
    card.Named(nullptr, {Write(matrices.back(), kBytes, i + 1)});
  }
  const CUdeviceptr other = Alloc(4 * kMiB);
  uint64_t most = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto read = [&](int i) {
      return Read(matrices[static_cast<size_t>(i)], kBytes, static_cast<uint32_t>(i + 1));
    };
    card.Named(nullptr, {Write(other, 4 * kMiB, 1000)});
    card.Launch(nullptr, {read(step % kHot), read((step + 5) % kHot), read(kHot + step / 8 % (kMatrices - kHot))});
    if (step % 8 == 7) OK(cuStreamSynchronize(nullptr));
    if (Budget() == 0 || step < kSteps / 2 || step % 8 != 7) continue;
    uint64_t resident = 0;
    for (const CUdeviceptr matrix : matrices) resident += simgpu_resident_bytes(matrix, kBytes);
    most = std::max(most, resident);
  }
  for (int i = 0; i < kMatrices; ++i) PrintDigest("matrix", matrices[static_cast<size_t>(i)], kBytes);
  std::fprintf(stderr, "most resident %" PRIu64 " MiB\n", most / kMiB);
  EXPECT(most <= Budget() + 96 * kMiB);
}

}  // namespace

SCENARIO(pool_blocks_are_learned) {
  Pool pool;
  pool.IterateAndPrint(3, kBlock, "first");
  // Blocks that were never written have no host pages: their first eviction takes 180 ms.
  simgpu_advance_host(500'000'000);
  pool.IterateAndPrint(4, kBlock, "settled");
  pool.PrintDigests();
}

// Kernels use a quarter of each block, then all of it.
SCENARIO(pool_blocks_used_more_widely) {
  Pool pool;
  pool.IterateAndPrint(6, kBlock / 4, "quarter");
  pool.IterateAndPrint(6, kBlock, "more");
  pool.IterateAndPrint(4, kBlock, "settled");
  pool.PrintDigests();
}

// Rows of the pool in random order: there is nothing to learn.
SCENARIO(random_rows_are_given_up) {
  Pool pool;
  std::mt19937_64 random(3);
  pool.Iterate(kBlock);
  const uint64_t before = pool.card.Stats().prefetch_in_bytes;
  for (int i = 0; i < 400; ++i) {
    std::vector<simgpu_touch> touches;
    for (int row = 0; row < 16; ++row)
      touches.push_back(Read(pool.all + random() % (kBlocks * kBlock / kMiB) * kMiB, 65536));
    simgpu_next_launch(touches.data(), touches.size(), 20000, 0);
    std::array<uint64_t, 8> words{pool.all};
    std::array<void*, 8> params{};
    for (size_t k = 0; k < 8; ++k) params.at(k) = &words.at(k);
    OK(cuLaunchKernel(pool.card.eight, 2, 1, 1, 1, 1, 1, 0, pool.stream, params.data(), nullptr));
    if (i % 16 == 15) OK(cuStreamSynchronize(pool.stream));
  }
  OK(cuCtxSynchronize());
  std::fprintf(stderr, "rows fetched_mib=%.0f\n",
               static_cast<double>(pool.card.Stats().prefetch_in_bytes - before) / 0x1p20);
  pool.PrintDigests();
}

// Blocks that copies loaded are written by a launch that was never seen to use them: they must be no duplicates by
// then.
SCENARIO(pool_with_loaded_blocks) {
  Pool pool;
  constexpr size_t kLoaded = 2;  // as many as stay resident beside the last
  const std::vector<char> bytes(kBlock, 5);
  std::vector<char> back(kBlock);
  for (int i = 0; i < 4; ++i) pool.Iterate(kBlock, kLoaded);
  for (size_t i = 0; i < kLoaded; ++i) OK(cuMemcpyHtoD(pool.At(i), bytes.data(), kBlock));
  for (int i = 0; i < 2; ++i) pool.Iterate(kBlock, kLoaded);
  // The second time its own block is resident, so that nothing has to be evicted for it.
  for (const bool loaded : {false, true}) {
    for (size_t i = 0; i < kLoaded; ++i) OK(cuMemcpyDtoH(back.data(), pool.At(i), kBlock));
    std::vector<simgpu_touch> touches{Update(pool.At(kBlocks - 1), kBlock, kBlocks)};
    for (size_t i = 0; i < kLoaded && loaded; ++i) touches.push_back(Write(pool.At(i), kBlock));
    simgpu_next_launch(touches.data(), touches.size(), 20000, 0);
    std::array<uint64_t, 8> words{pool.At(kBlocks - 1)};
    std::array<void*, 8> params{};
    for (size_t k = 0; k < 8; ++k) params.at(k) = &words.at(k);
    OK(cuLaunchKernel(pool.card.eight, 1, 1, 1, 1, 1, 1, 0, pool.stream, params.data(), nullptr));
  }
  OK(cuCtxSynchronize());
  EXPECT(pool.card.Stats().duplicate_write_bytes == 0);
  pool.PrintDigests();
}

// The launching thread itself opens the gate, when all launches are queued: the engine must not wait until a launch to
// be watched is alone.
SCENARIO(pool_launches_behind_a_gate) {
  Pool pool;
  void* host = nullptr;
  CUdeviceptr flag = 0;
  OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&flag, host, 0));
  CUstream other = pool.card.Stream();
  for (uint32_t batch = 1; batch <= 3; ++batch) {
    OK(cuStreamWaitValue32(pool.stream, flag, batch, CU_STREAM_WAIT_VALUE_EQ));
    for (size_t i = 0; i < kBlocks; ++i)
      pool.card.Named(pool.stream, {Update(pool.At(i), kBlock, static_cast<uint32_t>(i + 1))}, 100'000);
    OK(cuStreamWriteValue32(other, flag, batch, 0));
    OK(cuCtxSynchronize());
  }
  pool.PrintDigests();
}

// Each thread has its own stream and its own blocks of one pool.
SCENARIO(threads_in_a_pool) {
  Pool pool;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 6; ++t) {
    threads.emplace_back([&pool, t] {
      OK(cuCtxSetCurrent(pool.card.context));
      CUstream s = pool.card.Stream();
      for (size_t i = 0; i < 64; ++i) {
        const size_t block = t * 4 + i % 4;
        pool.card.Named(s, {Update(pool.At(block), kBlock, static_cast<uint32_t>(block + 1))}, 20000);
        if (i % 16 == t) OK(cuStreamSynchronize(s));
      }
      OK(cuStreamSynchronize(s));
    });
  }
  for (auto& thread : threads) thread.join();
  pool.Iterate(kBlock);
  pool.PrintDigests();
}

// One stream alone uses resident blocks. Then several streams use the rest of the pool in turn, and whenever one gets
// work, another is busy. Their fault residue is evicted all the same.
SCENARIO(streams_in_a_pool) {
  Pool pool;
  constexpr size_t kFirst = 4;  // blocks
  const auto use = [&pool](CUstream stream, size_t block) {
    pool.card.Named(stream, {Update(pool.At(block), kBlock, static_cast<uint32_t>(block + 1))}, 1'000'000);
  };
  for (size_t i = 0; i < 64; ++i) use(pool.stream, i % kFirst);
  OK(cuStreamSynchronize(pool.stream));
  std::vector<CUstream> streams;
  for (size_t i = 0; i < 4; ++i) streams.push_back(pool.card.Stream());
  for (size_t i = 0; i < 256; ++i) use(streams[i % 4], kFirst + i % (kBlocks - kFirst));
  std::fprintf(stderr, "streams max_resident_mib=%.0f\n",
               static_cast<double>(pool.card.Stats().resident_peak_bytes) / 0x1p20);
  pool.PrintDigests();
}
