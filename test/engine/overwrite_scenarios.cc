// Ranges that copies and memsets overwrite whole are populated without their contents, and no others.
#include <cstring>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBlock = 64 * kMiB, kRest = 640 * kMiB;

std::vector<unsigned char> Bytes(size_t n, unsigned char first) {
  std::vector<unsigned char> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<unsigned char>(first + i * 7 + i / 4096);
  return v;
}

// A GPU whose budget other blocks fill.
struct FullGpu {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> rest;  // in blocks: a launch is assumed to use the whole of one
  FullGpu() {
    for (uint64_t at = 0; at < kRest; at += kBlock) rest.push_back(Alloc(kBlock));
  }
  void EvictOthers() {
    for (const CUdeviceptr block : rest) card.Named(s, {Update(block, kBlock, 90)});
  }
  // `work` on evicted blocks: the bytes that it moves to the GPU.
  template <typename F>
  uint64_t BytesMoved(const char* what, F work) {
    EvictOthers();
    OK(cuStreamSynchronize(s));
    const uint64_t before = card.Stats().prefetch_in_bytes + card.Stats().fault_bytes;
    work();
    OK(cuStreamSynchronize(s));
    const uint64_t moved = card.Stats().prefetch_in_bytes + card.Stats().fault_bytes - before;
    std::fprintf(stderr, "%s moved_mib=%" PRIu64 "\n", what, moved / kMiB);
    return moved;
  }
};

// False where the hook is absent or everything fits its budget.
bool IsPressed() { return Budget() != 0 && Budget() < kRest; }
// Also false where the variable switches it off.
bool Repopulates() {
  const char* text = std::getenv("SLUICE_OVERWRITES");
  return IsPressed() && std::getenv("SCENARIO_NO_DISCARD") == nullptr && !(text && *text == '0');
}

}  // namespace

SCENARIO(overwritten_by_copies) {
  FullGpu full;
  Card& card = full.card;
  CUstream s = full.s;
  const CUdeviceptr p = Alloc(kBlock), q = Alloc(kBlock);
  card.Named(s, {Write(p, kBlock, 1)});
  card.Named(s, {Write(q, kBlock, 2)});
  const auto expect = [](uint64_t moved, uint64_t wanted) {
    const char* mode = std::getenv("SLUICE_PREFETCH");  // prefetches for later launches cannot be told apart
    if (IsPressed() && !(mode && *mode == 'p')) EXPECT(moved <= wanted + 4 * kMiB && moved + 4 * kMiB >= wanted);
  };
  const bool repopulates = Repopulates();
  expect(full.BytesMoved("memset", [&] { OK(cuMemsetD8Async(p, 7, kBlock, s)); }), repopulates ? 0 : kBlock);
  PrintDigest("set", p, kBlock);
  const auto in = Bytes(kBlock, 3);
  expect(full.BytesMoved("from the host", [&] { OK(cuMemcpyHtoDAsync(p, in.data(), kBlock, s)); }),
         repopulates ? 0 : kBlock);
  PrintDigest("from the host", p, kBlock);
  expect(full.BytesMoved("from the device", [&] { OK(cuMemcpyDtoDAsync(p, q, kBlock, s)); }),
         repopulates ? kBlock : 2 * kBlock);
  PrintDigest("from the device", p, kBlock);
  // Whole chunks only: the contents of the edges stay.
  card.Named(s, {Write(p, kBlock, 3)});
  expect(full.BytesMoved("edges", [&] { OK(cuMemsetD32Async(p + kMiB, 5, 40 * kMiB / 4, s)); }),
         repopulates ? 4 * kMiB : 42 * kMiB);
  PrintDigest("edges", p, kBlock);
  // A chunk that the copy also reads.
  card.Named(s, {Write(p, kBlock, 4)});
  expect(full.BytesMoved("neighbours", [&] { OK(cuMemcpyDtoDAsync(p + 17 * kMiB, p + kMiB, 16 * kMiB, s)); }),
         repopulates ? 18 * kMiB : 32 * kMiB + 2 * kMiB);
  PrintDigest("neighbours", p, kBlock);
  // Rows with gaps, and calls that the driver refuses.
  card.Named(s, {Write(p, kBlock, 5)});
  full.BytesMoved("rows", [&] { OK(cuMemsetD2D8Async(p, 4 * kMiB, 9, 3 * kMiB, 16, s)); });
  PrintDigest("rows", p, kBlock);
  card.Named(s, {Write(p, kBlock, 6)});
  full.BytesMoved("refused", [&] {
    EXPECT(cuMemsetD32Async(p + 2, 5, 8 * kMiB, s) != CUDA_SUCCESS);
    EXPECT(cuMemcpyDtoDAsync(p, 4096, kBlock, s) != CUDA_SUCCESS);
    EXPECT(cuMemcpyHtoDAsync(p, nullptr, kBlock, s) != CUDA_SUCCESS);
    card.Named(s, {Read(p, kBlock, 6)});
  });
  PrintDigest("refused", p, kBlock);
  PrintDigest("source", q, kBlock);
}

// The default stream, where the driver takes no discard, and streams that it orders.
SCENARIO(overwritten_on_default_streams) {
  FullGpu full;
  Card& card = full.card;
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  const CUdeviceptr p = Alloc(kBlock), q = Alloc(kBlock);
  for (unsigned round = 0; round < 6; ++round) {
    // The read still runs on the other kind of stream when the memset is queued: only the legacy stream's own rule
    // orders the two.
    CUstream reads = round % 2 ? nullptr : blocking, writes = round % 2 ? blocking : nullptr;
    card.Named(nullptr, {Write(p, kBlock, round + 1)});
    full.EvictOthers();
    OK(cuCtxSynchronize());
    card.Named(reads, {Read(p, kBlock, round + 1), Update(q, kBlock, 50)}, 20'000'000);
    full.EvictOthers();  // a stream of its own: it evicts no block that is in use
    OK(cuMemsetD8Async(p, static_cast<unsigned char>(round), kBlock, writes));
    OK(cuCtxSynchronize());
    PrintDigest("p", p, kBlock);
  }
  OK(cuMemsetD8(p, 1, kBlock));
  full.EvictOthers();
  OK(cuCtxSynchronize());
  OK(cuMemsetD8(p, 2, kBlock));
  PrintDigest("p", p, kBlock);
  PrintDigest("q", q, kBlock);
}

// The driver may still be evicting the block when another stream overwrites it, and readers that only an event orders
// may still run.
SCENARIO(overwritten_during_eviction) {
  FullGpu full;
  Card& card = full.card;
  CUstream s = full.s, t = card.Stream();
  CUevent done = nullptr;
  OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 4; ++i) p.push_back(Alloc(kBlock));
  for (uint32_t round = 0; round < 24; ++round) {
    const CUdeviceptr at = p[round % 4];
    card.Named(s, {Write(at, kBlock, round + 1)});
    OK(cuEventRecord(done, s));
    for (uint32_t i = 0; i <= round % 9; ++i) card.Named(s, {Update(full.rest[i], kBlock, 90)}, 10'000);
    OK(cuStreamWaitEvent(t, done, 0));
    OK(cuMemsetD8Async(at, static_cast<unsigned char>(round), kBlock, t));
    // And the other way round: t reads for long, and s overwrites.
    card.Named(t, {Read(at, kBlock)}, 3'000'000);
    OK(cuEventRecord(done, t));
    for (uint32_t i = 0; i < round % 5; ++i) card.Named(s, {Update(full.rest[i], kBlock, 90)}, 10'000);
    OK(cuStreamWaitEvent(s, done, 0));
    OK(cuMemcpyDtoDAsync(at, p[(round + 1) % 4], kBlock, s));
    if (round % 3 == 0) OK(cuCtxSynchronize());
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, kBlock);
}

// The same at every point of an eviction: the discard must not meet it.
SCENARIO(overwritten_at_any_point_of_eviction) {
  FullGpu full;
  Card& card = full.card;
  CUstream s = full.s, t = card.Stream();
  CUevent done = nullptr;
  OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  const CUdeviceptr p = Alloc(kBlock), other = Alloc(kMiB);
  void* host = nullptr;
  CUdeviceptr flag = 0;
  OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&flag, host, 0));
  OK(cuMemsetD32(flag, 0, 1));
  for (uint32_t round = 0; round < 80; ++round) {
    card.Named(s, {Write(p, kBlock, 1)});
    OK(cuEventRecord(done, s));
    OK(cuStreamWaitEvent(t, done, 0));
    OK(cuStreamWaitValue32(t, flag, round + 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (uint32_t i = 0; i < kRest / kBlock; ++i) {  // p is evicted somewhere in the middle of it
      if (i == round % 10) OK(cuStreamWriteValue32(s, flag, round + 1, 0));
      card.Named(s, {Update(full.rest[i], kBlock, 90)});
    }
    card.Named(t, {Update(other, kMiB)}, round / 10 * 600'000 + 1000);
    OK(cuMemsetD8Async(p, static_cast<unsigned char>(round), kBlock, t));
    OK(cuCtxSynchronize());
    PrintDigest("p", p, kBlock);
  }
}

// Launches queued before read the block remotely: it is not resident, and still in use.
SCENARIO(overwritten_after_remote_reads) {
  FullGpu full;
  Card& card = full.card;
  CUstream s = full.s, t = card.Stream();
  CUevent done = nullptr;
  OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  const CUdeviceptr p = Alloc(kBlock), sum = Alloc(4 * kMiB);
  // Of a shape of its own, and reads its operand once: remote access pays.
  const auto read_once = [&](CUstream on) {
    const simgpu_touch touches[] = {Read(p, kBlock), Update(sum, 4 * kMiB)};
    simgpu_next_launch(touches, 2, 20000, 0);
    std::array<uint64_t, 8> words{p, sum};
    std::array<void*, 8> params{};
    for (size_t i = 0; i < 8; ++i) params.at(i) = &words.at(i);
    OK(cuLaunchKernel(card.eight, 2, 1, 1, 1, 1, 1, 0, on, params.data(), nullptr));
  };
  const auto evict_others = [&] {
    for (const CUdeviceptr block : full.rest) {
      simgpu_touch touch = Update(block, kBlock);
      touch.access |= SIMGPU_PASSES(64);
      card.Named(s, {touch});
    }
  };
  card.Named(s, {Write(p, kBlock)});
  uint64_t remote_bytes = 0;
  for (unsigned round = 0; round < 24; ++round) {
    evict_others();
    for (int i = 0; i < 6; ++i) {
      read_once(s);
      OK(cuStreamSynchronize(s));
    }
    remote_bytes = card.Stats().remote_bytes - remote_bytes;
    card.Named(s, {Update(sum, 4 * kMiB)}, 8'000'000);
    read_once(s);
    if (round % 2) {  // only an event orders the two
      OK(cuEventRecord(done, s));
      OK(cuStreamWaitEvent(t, done, 0));
      OK(cuMemsetD8Async(p, static_cast<unsigned char>(round), kBlock, t));
      OK(cuEventRecord(done, t));
      OK(cuStreamWaitEvent(s, done, 0));
    } else {
      OK(cuMemsetD8Async(p, static_cast<unsigned char>(round), kBlock, s));
    }
    PrintDigest("sum", sum, 4 * kMiB);
    PrintDigest("p", p, kBlock);
  }
  if (Repopulates()) EXPECT(remote_bytes > 0);  // else the scenario shows nothing
}

// A capture takes no work of the engine's, and captured work is not done when it is queued.
SCENARIO(overwritten_in_a_capture) {
  FullGpu full;
  Card& card = full.card;
  CUstream s = full.s, t = card.Stream();
  const CUdeviceptr p = Alloc(kBlock), q = Alloc(kBlock);
  card.Named(s, {Write(p, kBlock, 1)});
  card.Named(s, {Write(q, kBlock, 2)});
  full.EvictOthers();
  OK(cuCtxSynchronize());
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemsetD8Async(p, 3, kBlock, s));
  OK(cuMemsetD8Async(q, 4, kBlock, t));  // beside the capture, and run
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  PrintDigest("p before", p, kBlock);
  PrintDigest("q", q, kBlock);
  for (int i = 0; i < 3; ++i) {
    card.Named(s, {Write(p, kBlock, 5)});
    full.EvictOthers();
    OK(cuGraphLaunch(executable, s));
  }
  PrintDigest("p", p, kBlock);
}
