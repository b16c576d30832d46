// Programs that cut their blocks out of one allocation: what a launch uses of it no parameter says, and the engine
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
  // Each block in turn, so many bytes of it.
  void Round(uint64_t bytes, size_t first = 0) {
    for (size_t i = first; i < kBlocks; ++i)
      card.Named(stream, {Update(At(i), bytes, static_cast<uint32_t>(i + 1))}, 100'000);
    OK(cuStreamSynchronize(stream));
  }
  // What faults bring in these rounds.
  void Rounds(int n, uint64_t bytes, const char* what) {
    const uint64_t before = card.Stats().fault_bytes;
    for (int i = 0; i < n; ++i) Round(bytes);
    std::fprintf(stderr, "%s: %.0f MiB by faults, %.0f MiB on the card\n", what,
                 static_cast<double>(card.Stats().fault_bytes - before) / 0x1p20,
                 static_cast<double>(card.Stats().resident_bytes) / 0x1p20);
  }
  void Say() const {
    for (size_t i = 0; i < kBlocks; ++i) SayDigest("block", At(i), kBlock);
  }
};

}  // namespace

SCENARIO(blocks_of_a_pool) {
  Pool pool;
  pool.Rounds(3, kBlock, "first");
  pool.Rounds(4, kBlock, "settled");
  pool.Say();
}

// Its kernels use a quarter of each block, then all of it.
SCENARIO(a_pool_used_otherwise) {
  Pool pool;
  pool.Rounds(6, kBlock / 4, "a quarter");
  pool.Rounds(6, kBlock, "more");
  pool.Rounds(4, kBlock, "settled");
  pool.Say();
}

// Rows of it in no order: there is nothing to learn.
SCENARIO(rows_of_a_pool) {
  Pool pool;
  std::mt19937_64 random(3);
  pool.Round(kBlock);
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
  std::fprintf(stderr, "rows: %.0f MiB were fetched\n",
               static_cast<double>(pool.card.Stats().prefetch_in_bytes - before) / 0x1p20);
  pool.Say();
}

// What copies loaded is written by a launch that was never seen to use it: it must be no duplicate by then.
SCENARIO(a_pool_with_loaded_blocks) {
  Pool pool;
  constexpr size_t kLoaded = 2;  // as many as stay on the card beside the last
  const std::vector<char> bytes(kBlock, 5);
  std::vector<char> back(kBlock);
  for (int i = 0; i < 4; ++i) pool.Round(kBlock, kLoaded);
  for (size_t i = 0; i < kLoaded; ++i) OK(cuMemcpyHtoD(pool.At(i), bytes.data(), kBlock));
  for (int i = 0; i < 2; ++i) pool.Round(kBlock, kLoaded);
  // The second time its own block is there, so that nothing has to make place for it.
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
  pool.Say();
}

// The launching thread itself lets the first of them go, when all are queued: nobody may wait for one that is to be
// watched until it is alone.
SCENARIO(a_pool_behind_a_gate) {
  Pool pool;
  void* host = nullptr;
  CUdeviceptr flag = 0;
  OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&flag, host, 0));
  CUstream other = pool.card.Stream();
  for (uint32_t turn = 1; turn <= 3; ++turn) {
    OK(cuStreamWaitValue32(pool.stream, flag, turn, CU_STREAM_WAIT_VALUE_EQ));
    for (size_t i = 0; i < kBlocks; ++i)
      pool.card.Named(pool.stream, {Update(pool.At(i), kBlock, static_cast<uint32_t>(i + 1))}, 100'000);
    OK(cuStreamWriteValue32(other, flag, turn, 0));
    OK(cuCtxSynchronize());
  }
  pool.Say();
}

// Each its own stream and its own blocks of the one pool.
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
  pool.Round(kBlock);
  pool.Say();
}

// A stream alone uses what is on the card, so that soon all is known to be there; then several get the rest of the pool
// in turns, and at no time are all others idle when one of them is given something. What their faults bring is sent
// away all the same.
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
  std::fprintf(stderr, "streams: %.0f MiB on the card at most\n",
               static_cast<double>(pool.card.Stats().resident_peak_bytes) / 0x1p20);
  pool.Say();
}
