// What copies and memsets overwrite whole comes back without its contents, and nothing else does.
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

// A card whose budget something else fills.
struct Full {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> rest;  // in blocks: a launch is believed to use the whole of one
  Full() {
    for (uint64_t at = 0; at < kRest; at += kBlock) rest.push_back(Alloc(kBlock));
  }
  void Push() {
    for (const CUdeviceptr block : rest) card.Named(s, {Update(block, kBlock, 90)});
  }
  // `work` on what has left the card; how much of it came over the link.
  template <typename F>
  uint64_t Came(const char* what, F work) {
    Push();
    OK(cuStreamSynchronize(s));
    const uint64_t before = card.Stats().prefetch_in_bytes + card.Stats().fault_bytes;
    work();
    OK(cuStreamSynchronize(s));
    const uint64_t came = card.Stats().prefetch_in_bytes + card.Stats().fault_bytes - before;
    std::fprintf(stderr, "%s: %" PRIu64 " MiB came\n", what, came / kMiB);
    return came;
  }
};

// Not 0 where the hook is absent or its budget holds everything, and where the variable switches it off.
bool Pressed() { return Budget() != 0 && Budget() < kRest; }
bool Renews() {
  const char* text = std::getenv("SLUICE_OVERWRITES");
  return Pressed() && std::getenv("SCENARIO_NO_DISCARD") == nullptr && !(text && *text == '0');
}

}  // namespace

SCENARIO(overwritten_by_copies) {
  Full full;
  Card& card = full.card;
  CUstream s = full.s;
  const CUdeviceptr p = Alloc(kBlock), q = Alloc(kBlock);
  card.Named(s, {Write(p, kBlock, 1)});
  card.Named(s, {Write(q, kBlock, 2)});
  const auto expect = [](uint64_t came, uint64_t wanted) {
    const char* mode = std::getenv("SLUICE_PREFETCH");  // what is brought ahead is not to be told apart
    if (Pressed() && !(mode && *mode == 'p')) EXPECT(came <= wanted + 4 * kMiB && came + 4 * kMiB >= wanted);
  };
  const bool renews = Renews();
  expect(full.Came("memset", [&] { OK(cuMemsetD8Async(p, 7, kBlock, s)); }), renews ? 0 : kBlock);
  SayDigest("set", p, kBlock);
  const auto in = Bytes(kBlock, 3);
  expect(full.Came("from the host", [&] { OK(cuMemcpyHtoDAsync(p, in.data(), kBlock, s)); }), renews ? 0 : kBlock);
  SayDigest("from the host", p, kBlock);
  expect(full.Came("from the device", [&] { OK(cuMemcpyDtoDAsync(p, q, kBlock, s)); }), renews ? kBlock : 2 * kBlock);
  SayDigest("from the device", p, kBlock);
  // Whole chunks only: what the edges hold stays.
  card.Named(s, {Write(p, kBlock, 3)});
  expect(full.Came("edges", [&] { OK(cuMemsetD32Async(p + kMiB, 5, 40 * kMiB / 4, s)); }),
         renews ? 4 * kMiB : 42 * kMiB);
  SayDigest("edges", p, kBlock);
  // A chunk that the copy reads, too.
  card.Named(s, {Write(p, kBlock, 4)});
  expect(full.Came("neighbours", [&] { OK(cuMemcpyDtoDAsync(p + 17 * kMiB, p + kMiB, 16 * kMiB, s)); }),
         renews ? 18 * kMiB : 32 * kMiB + 2 * kMiB);
  SayDigest("neighbours", p, kBlock);
  // Rows with gaps, and what the driver refuses.
  card.Named(s, {Write(p, kBlock, 5)});
  full.Came("rows", [&] { OK(cuMemsetD2D8Async(p, 4 * kMiB, 9, 3 * kMiB, 16, s)); });
  SayDigest("rows", p, kBlock);
  card.Named(s, {Write(p, kBlock, 6)});
  full.Came("refused", [&] {
    EXPECT(cuMemsetD32Async(p + 2, 5, 8 * kMiB, s) != CUDA_SUCCESS);
    EXPECT(cuMemcpyDtoDAsync(p, 4096, kBlock, s) != CUDA_SUCCESS);
    EXPECT(cuMemcpyHtoDAsync(p, nullptr, kBlock, s) != CUDA_SUCCESS);
    card.Named(s, {Read(p, kBlock, 6)});
  });
  SayDigest("refused", p, kBlock);
  SayDigest("source", q, kBlock);
}

// The default stream, where the driver takes no discard, and streams that it orders.
SCENARIO(overwritten_on_default_streams) {
  Full full;
  Card& card = full.card;
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  const CUdeviceptr p = Alloc(kBlock), q = Alloc(kBlock);
  for (unsigned round = 0; round < 6; ++round) {
    // Still running on the other kind of stream when the memset is queued: only the legacy stream's own rule is
    // between.
    CUstream reads = round % 2 ? nullptr : blocking, writes = round % 2 ? blocking : nullptr;
    card.Named(nullptr, {Write(p, kBlock, round + 1)});
    full.Push();
    OK(cuCtxSynchronize());
    card.Named(reads, {Read(p, kBlock, round + 1), Update(q, kBlock, 50)}, 20'000'000);
    full.Push();  // a stream of its own: what it pushes out is no longer in use, or is not pushed out
    OK(cuMemsetD8Async(p, static_cast<unsigned char>(round), kBlock, writes));
    OK(cuCtxSynchronize());
    SayDigest("p", p, kBlock);
  }
  OK(cuMemsetD8(p, 1, kBlock));
  full.Push();
  OK(cuCtxSynchronize());
  OK(cuMemsetD8(p, 2, kBlock));
  SayDigest("p", p, kBlock);
  SayDigest("q", q, kBlock);
}

// The driver may still be sending it away when another stream overwrites it, and readers that were told of by an event
// alone may still run.
SCENARIO(overwritten_while_it_leaves) {
  Full full;
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
    // And the other way round: what t reads for long, s overwrites.
    card.Named(t, {Read(at, kBlock)}, 3'000'000);
    OK(cuEventRecord(done, t));
    for (uint32_t i = 0; i < round % 5; ++i) card.Named(s, {Update(full.rest[i], kBlock, 90)}, 10'000);
    OK(cuStreamWaitEvent(s, done, 0));
    OK(cuMemcpyDtoDAsync(at, p[(round + 1) % 4], kBlock, s));
    if (round % 3 == 0) OK(cuCtxSynchronize());
  }
  for (CUdeviceptr at : p) SayDigest("block", at, kBlock);
}

// The same at every moment of a departure: the discard must not meet it.
SCENARIO(overwritten_at_every_moment) {
  Full full;
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
    for (uint32_t i = 0; i < kRest / kBlock; ++i) {  // p leaves somewhere in the middle of it
      if (i == round % 10) OK(cuStreamWriteValue32(s, flag, round + 1, 0));
      card.Named(s, {Update(full.rest[i], kBlock, 90)});
    }
    card.Named(t, {Update(other, kMiB)}, round / 10 * 600'000 + 1000);
    OK(cuMemsetD8Async(p, static_cast<unsigned char>(round), kBlock, t));
    OK(cuCtxSynchronize());
    SayDigest("p", p, kBlock);
  }
}

// Used in host memory by what is queued before: it is not on the card, and not done with either.
SCENARIO(overwritten_where_it_is_read) {
  Full full;
  Card& card = full.card;
  CUstream s = full.s, t = card.Stream();
  CUevent done = nullptr;
  OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  const CUdeviceptr p = Alloc(kBlock), sum = Alloc(4 * kMiB);
  // Of a shape of its own, and over its operand once: worth using where it lies.
  const auto stream = [&](CUstream on) {
    const simgpu_touch touches[] = {Read(p, kBlock), Update(sum, 4 * kMiB)};
    simgpu_next_launch(touches, 2, 20000, 0);
    std::array<uint64_t, 8> words{p, sum};
    std::array<void*, 8> params{};
    for (size_t i = 0; i < 8; ++i) params.at(i) = &words.at(i);
    OK(cuLaunchKernel(card.eight, 2, 1, 1, 1, 1, 1, 0, on, params.data(), nullptr));
  };
  const auto push = [&] {
    for (const CUdeviceptr block : full.rest) {
      simgpu_touch touch = Update(block, kBlock);
      touch.access |= SIMGPU_PASSES(64);
      card.Named(s, {touch});
    }
  };
  card.Named(s, {Write(p, kBlock)});
  uint64_t in_place = 0;
  for (unsigned round = 0; round < 24; ++round) {
    push();
    for (int i = 0; i < 6; ++i) {
      stream(s);
      OK(cuStreamSynchronize(s));
    }
    in_place = card.Stats().remote_bytes - in_place;
    card.Named(s, {Update(sum, 4 * kMiB)}, 8'000'000);
    stream(s);
    if (round % 2) {  // the order comes by an event alone
      OK(cuEventRecord(done, s));
      OK(cuStreamWaitEvent(t, done, 0));
      OK(cuMemsetD8Async(p, static_cast<unsigned char>(round), kBlock, t));
      OK(cuEventRecord(done, t));
      OK(cuStreamWaitEvent(s, done, 0));
    } else {
      OK(cuMemsetD8Async(p, static_cast<unsigned char>(round), kBlock, s));
    }
    SayDigest("sum", sum, 4 * kMiB);
    SayDigest("p", p, kBlock);
  }
  if (Renews()) EXPECT(in_place > 0);  // else this shows nothing
}

// A capture takes no work of ours, and what it holds is not done when it is queued.
SCENARIO(overwritten_in_a_capture) {
  Full full;
  Card& card = full.card;
  CUstream s = full.s, t = card.Stream();
  const CUdeviceptr p = Alloc(kBlock), q = Alloc(kBlock);
  card.Named(s, {Write(p, kBlock, 1)});
  card.Named(s, {Write(q, kBlock, 2)});
  full.Push();
  OK(cuCtxSynchronize());
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemsetD8Async(p, 3, kBlock, s));
  OK(cuMemsetD8Async(q, 4, kBlock, t));  // beside it, and run
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  SayDigest("p before", p, kBlock);
  SayDigest("q", q, kBlock);
  for (int i = 0; i < 3; ++i) {
    card.Named(s, {Write(p, kBlock, 5)});
    full.Push();
    OK(cuGraphLaunch(executable, s));
  }
  SayDigest("p", p, kBlock);
}
