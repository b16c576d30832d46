// Does cutting an allocation's mapping speed up eviction? Several threads evict managed memory by requests (evict.cu).
// Advice has cut the allocation's mapping into parts of 8, 16 or 32 MiB, or not at all. Then 2 GiB move in each
// direction at once. At most 5 GiB of managed memory, and at most a quarter of the free memory.
//   nvcc -O2 -std=c++17 -arch=native -cudart shared experiments/probes/cut.cu -o cut -lcuda
#include <sys/mman.h>

#include <atomic>

#include "requests.h"

namespace {

constexpr size_t kBlock = 64 * kMiB, kBlocks = 32;

}  // namespace

int main() {
  cudaFree(nullptr);
  Guard(2 * kBlocks * kBlock + 1024 * kMiB);
  std::vector<CUdeviceptr> p(kBlocks), q(kBlocks);
  for (auto* list : {&p, &q})
    for (CUdeviceptr& block : *list) {
      OK(cuMemAllocManaged(&block, kBlock, CU_MEM_ATTACH_GLOBAL));
      OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
      OK(cuMemsetD8Async(block, 7, kBlock, nullptr));
      OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
    }
  OK(cuCtxSynchronize());
  FindSpace(p[0]);
  const CUstream b = Make();
  // Host pages that do not exist yet: each allocation is evicted for the first time.
  for (int threads : {1, 2, 4, 8}) {
    for (size_t split : {0, 8}) {
      CUdeviceptr one = 0;
      OK(cuMemAllocManaged(&one, 1024 * kMiB, CU_MEM_ATTACH_GLOBAL));
      for (size_t at = 0; split && at < 1024 * kMiB; at += 2 * split * kMiB)
        madvise(reinterpret_cast<void*>(one + at), split * kMiB, MADV_RANDOM);
      for (size_t at = 0; at < 1024 * kMiB; at += kBlock)
        OK(cuMemPrefetchAsync_v2(one + at, kBlock, Card(), 0, nullptr));
      OK(cuMemsetD8(one, 5, 1024 * kMiB));
      OK(cuCtxSynchronize());
      Pool pool(threads - 1);
      std::vector<Piece> pieces;
      for (size_t at = 0; at < 1024 * kMiB; at += 8 * kMiB) pieces.push_back({one + at, 8 * kMiB});
      const double begin = Now();
      pool.Run(pieces);
      const double ms = Now() - begin;
      std::printf("first eviction, cut each %zu MiB, %d threads: %.1f ms, %.1f GB/s\n", split, threads, ms,
                  1024 * kMiB / ms / 1e6);
      OK(cuMemFree(one));
    }
  }
  std::fflush(stdout);
  for (int round = 0; round < 1; ++round) {
    for (size_t split : {0, 8, 16, 32}) {
      CUdeviceptr one = 0;
      OK(cuMemAllocManaged(&one, 1024 * kMiB, CU_MEM_ATTACH_GLOBAL));
      if (split)
        for (size_t at = 0; at < 1024 * kMiB; at += 2 * split * kMiB)
          if (madvise(reinterpret_cast<void*>(one + at), split * kMiB, MADV_RANDOM) != 0) std::printf("(refused) ");
      const auto fetch = [&](size_t bytes) {
        for (size_t at = 0; at < bytes; at += kBlock) OK(cuMemPrefetchAsync_v2(one + at, kBlock, Card(), 0, nullptr));
        OK(cuCtxSynchronize());
      };
      fetch(1024 * kMiB);
      OK(cuMemsetD8(one, 5, 1024 * kMiB));
      OK(cuMemPrefetchAsync_v2(one, 1024 * kMiB, Host(), 0, nullptr));
      for (int others : {0, 1, 3}) {
        for (size_t piece : {4, 8, 16}) {
          fetch(1024 * kMiB);
          Pool pool(others);
          std::vector<Piece> pieces;
          for (size_t at = 0; at < 1024 * kMiB; at += piece * kMiB) pieces.push_back({one + at, piece * kMiB});
          const double begin = Now();
          pool.Run(pieces);
          const double ms = Now() - begin;
          std::printf("one allocation of 1 GiB cut each %zu MiB, %d threads, %zu MiB each: %.1f ms, %.1f GB/s\n", split,
                      others + 1, piece, ms, 1024 * kMiB / ms / 1e6);
        }
      }
      unsigned char value = 0;
      OK(cuMemcpyDtoH(&value, one + 777 * kMiB, 1));
      Check(value == 5, "the value");
      OK(cuMemAdvise_v2(one, 1024 * kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, Card()));
      OK(cuMemAdvise_v2(one + 3 * kMiB, 64 * kMiB, CU_MEM_ADVISE_UNSET_ACCESSED_BY, Card()));
      OK(cuMemFree(one));
    }
    // Both directions, each by requests or by the driver's call.
    for (int in_threads : {0, 1, 2}) {
      for (int out_threads : {2, 4}) {
        for (CUdeviceptr block : p) OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
        for (CUdeviceptr block : q) OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
        OK(cuCtxSynchronize());
        std::vector<Piece> pieces;
        for (CUdeviceptr block : p) pieces.push_back({block, kBlock});
        Pool pool(out_threads - 1);
        const double begin = Now();
        double in_ms = 0;
        CUcontext context;
        OK(cuCtxGetCurrent(&context));
        std::thread fetch([&] {
          if (in_threads == 0) {
            OK(cuCtxSetCurrent(context));
            for (CUdeviceptr block : q) OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, b));
            OK(cuStreamSynchronize(b));
          } else {
            std::atomic<size_t> next{0};
            std::vector<std::thread> more;
            for (int t = 0; t < in_threads; ++t)
              more.emplace_back([&] {
                for (size_t i; (i = next++) < q.size();) Check(Request(q[i], kBlock, card), "request");
              });
            for (auto& t : more) t.join();
          }
          in_ms = Now() - begin;
        });
        pool.Run(pieces);
        const double out_ms = Now() - begin;
        fetch.join();
        std::printf("2 GiB each direction: out by %d threads %.1f ms, in by %s %d %.1f ms\n", out_threads, out_ms,
                    in_threads ? "requests of" : "the driver's call", in_threads, in_ms);
      }
    }
  }
  OK(cuCtxSynchronize());
  return 0;
}
