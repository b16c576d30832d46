// VMM memory as PyTorch's expandable segments, XLA and sleep modes use it, under pressure.
#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "test/engine/report.h"
#include "test/engine/scenario.h"
#include "test/engine/vmm.h"

using namespace scenario;       // NOLINT(google-build-using-namespace)
using namespace scenario::vmm;  // NOLINT(google-build-using-namespace)

namespace {

// PyTorch's expandable segment: one reservation that is larger than the budget, and handles of 20 MiB.
class Segment {
 public:
  static constexpr uint64_t kPart = 20 * kMiB;
  explicit Segment(uint64_t bytes) : base(Reserve(bytes)), bytes_(bytes), handles_(bytes / kPart) {}
  void Grow(size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) handles_.at(i) = Create(kPart);
    for (size_t i = from; i < to; ++i) OK(cuMemMap(base + i * kPart, kPart, 0, handles_.at(i), 0));
    Allow(base + from * kPart, (to - from) * kPart);
  }
  void Shrink(size_t from, size_t to) {
    Synchronize();
    for (size_t i = from; i < to; ++i) {
      OK(cuMemUnmap(base + i * kPart, kPart));
      OK(cuMemRelease(handles_.at(i)));
      handles_.at(i) = 0;
    }
  }
  void Free() {
    for (size_t i = 0; i < handles_.size(); ++i) {
      if (handles_[i] != 0) Shrink(i, i + 1);
    }
    OK(cuMemAddressFree(base, bytes_));
  }
  // Touches of a block part by part: the simulated driver's digests depend on where its allocations end. Only the
  // block's first byte is named.
  void Use(Card* card, CUdeviceptr block, uint64_t bytes, unsigned access, uint32_t object) const {
    std::vector<simgpu_touch> touches;
    for (CUdeviceptr at = block; at < block + bytes;) {
      const CUdeviceptr end = std::min(block + bytes, base + ((at - base) / kPart + 1) * kPart);
      touches.push_back({at, end - at, access, object});
      at = end;
    }
    simgpu_next_launch(touches.data(), touches.size(), 50'000, 0);
    std::array<uint64_t, 8> words{block};
    std::array<void*, 8> params{};
    for (size_t i = 0; i < 8; ++i) params.at(i) = &words.at(i);
    OK(cuLaunchKernel(card->eight, 1, 1, 1, 1, 1, 1, 0, nullptr, params.data(), nullptr));
  }
  void Print(CUdeviceptr block, uint64_t bytes) const {
    for (CUdeviceptr at = block; at < block + bytes; at += kPart / 2) PrintDigest("part", at, kPart / 2);
  }
  const CUdeviceptr base;

 private:
  const uint64_t bytes_;
  std::vector<Handle> handles_;
};

}  // namespace

// Blocks that reach over several handles, a segment that shrinks in the middle and grows again, and reports of its
// blocks as PyTorch makes them.
SCENARIO(vmm_expandable_segment) {
  constexpr unsigned kWrite = SIMGPU_WRITE, kUpdate = SIMGPU_READ | SIMGPU_WRITE;
  Card card;
  constexpr uint64_t kBlock = 50 * kMiB;
  for (const bool reports : {false, true}) {
    Segment segment(9000 * kMiB);
    segment.Grow(0, 40);
    const auto block = [&](size_t i) { return segment.base + i * kBlock; };
    const auto use = [&](size_t i, unsigned access, uint32_t object) {
      segment.Use(&card, block(i), kBlock, access, object);
    };
    for (size_t i = 0; i < 16; ++i) {
      if (reports) Report(block(i), kBlock);
      use(i, kWrite, i + 1);
    }
    for (int round = 0; round < 4; ++round) {
      for (size_t i = 0; i < 16; ++i) use(i, kUpdate, i + 1);
    }
    // Blocks 6 to 9 end: handles 15 to 24 are given back, and come again.
    for (size_t i = 6; reports && i < 10; ++i) Report(block(i), -static_cast<long>(kBlock));
    segment.Shrink(15, 25);
    for (size_t i = 0; i < 16; ++i) {
      if (i < 6 || i >= 10) use(i, kUpdate, i + 1);
    }
    segment.Grow(15, 25);
    for (size_t i = 6; i < 10; ++i) {
      if (reports) Report(block(i), kBlock);
      use(i, kWrite, 100 + i);
    }
    for (size_t i = 0; i < 16; ++i) segment.Print(block(i), kBlock);
    for (size_t i = 0; reports && i < 16; ++i) Report(block(i), -static_cast<long>(kBlock));
    segment.Free();
  }
}

// XLA: memory is created before its address is reserved, and everything is freed in one go.
SCENARIO(vmm_created_before_reserved) {
  Card card;
  constexpr uint64_t kBytes = 64 * kMiB;
  struct Block {
    Handle handle;
    CUdeviceptr at;
    uint64_t object;
  };
  uint64_t objects = 0;
  std::vector<Block> blocks;
  const auto add = [&] {
    Block block{};
    block.handle = Create(kBytes);
    block.at = Reserve(kBytes);
    Map(block.at, kBytes, block.handle);
    block.object = ++objects;
    card.Named(nullptr, {Write(block.at, kBytes, block.object)});
    blocks.push_back(block);
  };
  const auto remove = [&] {
    Synchronize();
    OK(cuMemUnmap(blocks.back().at, kBytes));
    OK(cuMemRelease(blocks.back().handle));
    OK(cuMemAddressFree(blocks.back().at, kBytes));
    blocks.pop_back();
  };
  for (int i = 0; i < 12; ++i) add();
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i + 1 < blocks.size(); ++i)
      card.Named(nullptr, {Read(blocks[i].at, kBytes), Update(blocks[i + 1].at, kBytes, blocks[i + 1].object)},
                 200'000);
    remove();
    remove();
    add();
  }
  for (const Block& block : blocks) PrintDigest("block", block.at, kBytes);
  while (!blocks.empty()) remove();
}

// A sleep mode below an allocator that reports its blocks: contents go to the host by copies, the memory is unmapped
// and released, and the same addresses get new memory. The blocks stay.
SCENARIO(vmm_sleep_and_wake) {
  Card card;
  constexpr uint64_t kBytes = 12 * kMiB;
  constexpr size_t kCount = 20;
  std::vector<CUdeviceptr> at(kCount);
  std::vector<Handle> handles(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    at[i] = Reserve(kBytes);
    handles[i] = Create(kBytes);
    Map(at[i], kBytes, handles[i]);
    Report(at[i], 8 * kMiB);
    Report(at[i] + 8 * kMiB, 4 * kMiB);
    card.Named(nullptr, {Write(at[i], 8 * kMiB, i + 1), Write(at[i] + 8 * kMiB, 4 * kMiB, i + 50)});
  }
  std::vector<std::vector<char>> saved(kCount, std::vector<char>(kBytes));
  for (int round = 0; round < 2; ++round) {
    Synchronize();
    for (size_t i = 0; i < kCount; ++i) {
      OK(cuMemcpyDtoH(saved[i].data(), at[i], kBytes));
      OK(cuMemUnmap(at[i], kBytes));
      OK(cuMemRelease(handles[i]));
    }
    CUdeviceptr other = Alloc(300 * kMiB);
    card.Named(nullptr, {Write(other, 300 * kMiB, 9)});
    Synchronize();
    OK(cuMemFree(other));
    for (size_t i = 0; i < kCount; ++i) {
      handles[i] = Create(kBytes);
      Map(at[i], kBytes, handles[i]);
      OK(cuMemcpyHtoD(at[i], saved[i].data(), kBytes));
    }
    // Other memory takes the budget: a woken block that is held to be free would be discarded.
    other = Alloc(240 * kMiB);
    for (int pass = 0; pass < 3; ++pass) {
      card.Named(nullptr, {Update(other, 240 * kMiB, 9)}, 400'000);
      for (size_t i = 0; i < kCount; ++i) card.Named(nullptr, {Update(at[i], 8 * kMiB, i + 1)}, 100'000);
    }
    Synchronize();
    OK(cuMemFree(other));
  }
  for (size_t i = 0; i < kCount; ++i) {
    PrintDigest("first", at[i], 8 * kMiB);
    PrintDigest("second", at[i] + 8 * kMiB, 4 * kMiB);
  }
}

// Memory that is freed is used again: nothing grows with the number of segments.
SCENARIO(vmm_churn) {
  Card card;
  size_t before = 0, after = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  uint64_t requested_early = 0;
  std::mt19937_64 random(5);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t bytes = (1 + random() % 24) * 2 * kMiB;
    const CUdeviceptr at = Reserve(bytes);
    const Handle handle = Create(bytes);
    Map(at, bytes, handle);
    card.Named(nullptr, {Write(at, bytes, i)});
    Synchronize();
    if (i % 100 == 0) Print("digest", simgpu_digest(at, bytes));
    OK(cuMemUnmap(at, bytes));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(at, bytes));
    if (i == 200) requested_early = card.Stats().managed_requested_bytes;
  }
  OK(cuMemGetInfo(&after, &total));
  EXPECT(before == after);
  EXPECT(card.Stats().managed_requested_bytes <= requested_early + 64 * kMiB);
}

// Captured blocks stay, whatever their allocator reports.
SCENARIO(vmm_captured) {
  Card card;
  constexpr uint64_t kBytes = 20 * kMiB;
  Segment segment(1000 * kMiB);
  segment.Grow(0, 30);
  const CUstream stream = card.Stream();
  const auto block = [&](size_t i) { return segment.base + i * kBytes; };
  for (size_t i = 0; i < 30; ++i) {
    Report(block(i), kBytes);
    card.Named(stream, {Write(block(i), kBytes, i + 1)});
  }
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  card.Named(stream, {Read(block(0), kBytes), Update(block(1), kBytes, 2)});
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  for (size_t i = 0; i < 2; ++i) Report(block(i), -static_cast<long>(kBytes));
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 2; i < 30; ++i) card.Named(stream, {Update(block(i), kBytes, i + 1)}, 100'000);
    OK(cuGraphLaunch(executable, stream));
  }
  OK(cuStreamSynchronize(stream));
  for (size_t i = 0; i < 30; ++i) PrintDigest("block", block(i), kBytes);
}

// A kernel writes through a pointer in GPU memory, so no parameter names the memory. The contents go where the handle
// is mapped next.
SCENARIO(vmm_contents_written_by_a_table_move) {
  Card card;
  const CUstream stream = card.Stream();
  std::vector<CUdeviceptr> used;
  for (int i = 0; i < 12; ++i) used.push_back(Alloc(64 * kMiB));
  for (int i = 0; i < 3; ++i) {
    for (const CUdeviceptr block : used) card.Named(stream, {Update(block, 64 * kMiB)});
  }
  Synchronize();
  constexpr uint64_t kBytes = 8 * kMiB;
  const Handle handle = Create(kBytes), other = Create(kBytes);
  const CUdeviceptr first = Reserve(kBytes), second = Reserve(kBytes);
  Map(first, kBytes, handle);
  card.Launch(stream, {Write(first, kBytes)});
  PrintDigest("written", first, kBytes);
  OK(cuMemUnmap(first, kBytes));
  Map(first, kBytes, other);
  Map(second, kBytes, handle);
  PrintBytes("moved", second, kBytes);
}

// Threads that have ended queue nothing more, so a handle may become the driver's: mapped twice.
SCENARIO(vmm_mapped_twice_beside_ended_threads) {
  Card card;
  std::thread([&] {
    OK(cuCtxSetCurrent(card.context));
    const CUstream stream = card.Stream();
    const CUdeviceptr block = Alloc(4 * kMiB);
    OK(cuMemsetD8Async(block, 1, 4 * kMiB, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemFree(block));
    OK(cuStreamDestroy(stream));
  }).join();
  constexpr uint64_t kBytes = 2 * kMiB;
  const Handle handle = Create(kBytes);
  const CUdeviceptr p = Reserve(2 * kBytes);
  Map(p, kBytes, handle);
  OK(cuMemsetD8(p, 3, kBytes));
  Print("mapped twice", cuMemMap(p + kBytes, kBytes, 0, handle, 0));
  Allow(p + kBytes, kBytes);
  OK(cuMemsetD8(p + kBytes, 4, kMiB));
  PrintBytes("first", p, kBytes);
}

// One thread reserves addresses and frees them, another retains the primary context and releases it.
SCENARIO(reservations_beside_releases) {
  Card card;
  constexpr int kRounds = 400;
  std::thread reserving([&] {
    OK(cuCtxSetCurrent(card.context));
    for (int i = 0; i < kRounds; ++i) OK(cuMemAddressFree(Reserve(4 * kMiB), 4 * kMiB));
  });
  for (int i = 0; i < kRounds; ++i) {
    CUcontext context = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuDevicePrimaryCtxRelease(0));
  }
  reserving.join();
}
