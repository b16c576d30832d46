// Allocation, reuse and copies.
#include <algorithm>
#include <cstring>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

std::vector<unsigned char> Pattern(size_t bytes, unsigned seed) {
  std::vector<unsigned char> v(bytes);
  std::mt19937 random(seed);
  for (auto& b : v) b = static_cast<unsigned char>(random());
  return v;
}

// Evicts everything else from a budget of 512 MiB.
void Sweep(Card& card, CUstream s, CUdeviceptr big, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += 64 * kMiB) card.Named(s, {Update(big + at, 64 * kMiB, 90)});
}

long ResidentSetBytes() {
  long total = 0, resident = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%ld %ld", &total, &resident) != 2) resident = 0;
    std::fclose(f);
  }
  return resident * 4096;
}

// Each block is updated in its turn, and a part of the next one read.
void Iterate(uint32_t iterations) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (int i = 0; i < 16; ++i) p.push_back(Alloc(64 * kMiB));
  for (uint32_t n = 0; n < iterations; ++n) {
    for (uint32_t i = 0; i < 16; ++i) {
      card.Named(s, {Update(p[i], 64 * kMiB, i + 1), Read(p[(i + 1) % 16] + 8 * kMiB, 16 * kMiB, (i + 1) % 16 + 1)});
    }
  }
  for (CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
}

}  // namespace

SCENARIO(iterations_over_blocks) { Iterate(4); }
SCENARIO(many_iterations_over_blocks) { Iterate(16); }

// Ranges are freed and allocated again while the work that used them is queued. Every touch names its object, so the
// simulated GPU reports a range that is reused too early.
SCENARIO(ranges_freed_and_reused) {
  Card card;
  CUstream s[2] = {card.Stream(), card.Stream()};
  struct Block {
    CUdeviceptr p;
    uint64_t bytes;
    uint32_t object;
    CUstream stream;
  };
  std::vector<Block> blocks;
  std::mt19937 random(7);
  uint64_t live = 0, digest = 0;
  uint32_t object = 0;
  for (int step = 0; step < 3000; ++step) {
    if (blocks.size() < 12 || (blocks.size() < 40 && random() % 2)) {
      const uint64_t bytes = random() % 3 ? (random() % 64 + 1) * 4096 : (random() % 20 + 1) * 3 * kMiB;
      CUstream stream = s[random() % 2];
      blocks.push_back({Alloc(bytes), bytes, ++object, stream});
      live += bytes;
      card.Named(stream, {Write(blocks.back().p, bytes, object)}, 200'000);
    } else {
      const size_t i = random() % blocks.size();
      const Block b = blocks[i];
      card.Named(b.stream, {Update(b.p, b.bytes, b.object)}, 300'000);
      digest += 1;
      OK(cuMemFree(b.p));
      live -= b.bytes;
      blocks.erase(blocks.begin() + static_cast<long>(i));
    }
    if (Budget() != 0 && step % 100 == 99) {
      // Freed memory can be returned once the GPU has done the work that used it.
      OK(cuCtxSynchronize());
      OK(cuMemFree(Alloc(4096)));
      std::fprintf(stderr, "live %" PRIu64 " requested %" PRIu64 "\n", live >> 20,
                   card.Stats().managed_requested_bytes >> 20);
      // 2 MiB: the block by which the engine tries discards.
      EXPECT(card.Stats().managed_requested_bytes <= live + live / 4 + 258 * kMiB);
    }
  }
  Print("frees", digest);
  for (const Block& b : blocks) PrintDigest("block", b.p, b.bytes);
}

// A block freed in a stream is reusable in it at once, and in other streams only when that stream has come so far.
SCENARIO(stream_ordered_reuse) {
  Card card;
  CUstream a = card.Stream(), b = card.Stream();
  for (const uint64_t bytes : {uint64_t{4096}, 8 * kMiB}) {
    CUdeviceptr p = 0, q = 0, r = 0;
    OK(cuMemAllocAsync(&p, bytes, a));
    card.Named(a, {Write(p, bytes, 1)}, 50'000'000);
    OK(cuMemFreeAsync(p, a));
    OK(cuMemAllocAsync(&r, bytes, b));  // elsewhere
    EXPECT(r != p);
    card.Named(b, {Write(r, bytes, 2)});
    OK(cuMemAllocAsync(&q, bytes, a));
    EXPECT(q == p);
    card.Named(a, {Write(q, bytes, 3)});
    OK(cuMemFreeAsync(r, b));
    OK(cuMemFreeAsync(q, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemAllocAsync(&r, bytes, b));
    card.Named(b, {Write(r, bytes, 4)});
    OK(cuMemFreeAsync(r, b));
    OK(cuStreamSynchronize(b));
  }
}

SCENARIO(stream_ordered_allocation) {
  Card card;
  CUstream s[3] = {card.Stream(), card.Stream(), card.Stream()};
  CUevent e = nullptr;
  OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr kept = Alloc(512 * kMiB);
  std::mt19937 random(3);
  for (uint32_t i = 1; i < 1500; ++i) {
    CUstream from = s[random() % 3], to = s[random() % 3];
    const uint64_t bytes = random() % 2 ? (random() % 16 + 1) * 4096 : (random() % 12 + 1) * 2 * kMiB;
    CUdeviceptr p = 0;
    OK(cuMemAllocAsync(&p, bytes, from));
    card.Named(from, {Write(p, bytes, i), Read(kept + (i % 8) * 64 * kMiB, 64 * kMiB)}, 400'000);
    if (to != from) {  // used and freed in another stream
      OK(cuEventRecord(e, from));
      OK(cuStreamWaitEvent(to, e, 0));
      card.Named(to, {Update(p, bytes, i)}, 200'000);
    }
    OK(cuMemFreeAsync(p, to));
  }
  PrintDigest("kept", kept, 512 * kMiB);
  OK(cuMemFree(kept));
}

SCENARIO(copies_survive_eviction) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr big = Alloc(768 * kMiB);
  const CUdeviceptr p = Alloc(8 * kMiB), q = Alloc(8 * kMiB);
  for (const size_t bytes : {size_t{4}, size_t{4097}, size_t{3} << 20, size_t{8} << 20}) {
    const auto in = Pattern(bytes, static_cast<unsigned>(bytes));
    std::vector<unsigned char> out(bytes);
    OK(cuMemcpyHtoD(p, in.data(), bytes));
    Sweep(card, s, big, 768 * kMiB);
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoD(q, p, bytes));
    OK(cuCtxSynchronize());
    Sweep(card, s, big, 768 * kMiB);
    OK(cuMemcpyDtoHAsync(out.data(), q, bytes, s));
    OK(cuStreamSynchronize(s));
    EXPECT(out == in);
  }
  OK(cuMemsetD32(p, 0x01020304, 1024));
  Sweep(card, s, big, 768 * kMiB);
  std::vector<uint32_t> words(1024);
  OK(cuMemcpyDtoH(words.data(), p, 4096));
  for (const uint32_t word : words) EXPECT(word == 0x01020304);
  PrintDigest("big", big, 768 * kMiB);
}

SCENARIO(pitched_allocation) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr big = Alloc(768 * kMiB);
  CUdeviceptr p = 0;
  size_t pitch = 0;
  OK(cuMemAllocPitch(&p, &pitch, 1000, 333, 4));
  EXPECT(pitch >= 1000 && pitch % 256 == 0);
  const auto in = Pattern(1000 * 333, 5);
  std::vector<unsigned char> out(in.size());
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = in.data();
  c.srcPitch = 1000;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.dstDevice = p;
  c.dstPitch = pitch;
  c.WidthInBytes = 1000;
  c.Height = 333;
  OK(cuMemcpy2D(&c));
  Sweep(card, s, big, 768 * kMiB);
  OK(cuStreamSynchronize(s));
  CUDA_MEMCPY2D d{};
  d.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  d.srcDevice = p;
  d.srcPitch = pitch;
  d.dstMemoryType = CU_MEMORYTYPE_HOST;
  d.dstHost = out.data();
  d.dstPitch = 1000;
  d.WidthInBytes = 1000;
  d.Height = 333;
  OK(cuMemcpy2D(&d));
  EXPECT(out == in);
  OK(cuMemFree(p));
}

SCENARIO(managed_memory_of_the_application) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr big = Alloc(768 * kMiB), p = card.Managed(32 * kMiB);
  const auto in = Pattern(1 << 20, 9);
  std::vector<unsigned char> out(in.size());
  OK(cuMemcpyHtoD(p, in.data(), in.size()));
  card.Named(s, {Read(p, 32 * kMiB), Write(p + 16 * kMiB, 16 * kMiB, 4)});
  Sweep(card, s, big, 768 * kMiB);
  OK(cuStreamSynchronize(s));
  OK(cuMemcpyDtoH(out.data(), p, out.size()));
  EXPECT(out == in);
  unsigned managed = 0;
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
  EXPECT(managed == 1);
  PrintDigest("second half", p + 16 * kMiB, 16 * kMiB);
  OK(cuMemFree(p));
}

// Small blocks are unmanaged memory up to a 64th of the budget; further ones are managed. They are released, they keep
// their contents under pressure, and they look like any other block.
SCENARIO(small_allocations_stay_unmanaged) {
  Card card;
  CUstream s = card.Stream();
  const uint64_t max_unmanaged = Budget() / 64;
  std::vector<CUdeviceptr> small;
  while (small.size() * kMiB * 2 < 24 * kMiB) {
    small.push_back(Alloc(2 * kMiB));
    card.Named(s, {Write(small.back(), 2 * kMiB, static_cast<uint32_t>(small.size()))});
  }
  if (Budget() != 0) {
    const uint64_t managed = card.Stats().managed_requested_bytes;
    EXPECT(managed >= 24 * kMiB - std::min(24 * kMiB, max_unmanaged));
    if (max_unmanaged >= 24 * kMiB) EXPECT(managed == 0);
  }
  std::vector<CUdeviceptr> large;
  for (uint32_t i = 0; i < 10; ++i) large.push_back(Alloc(64 * kMiB));
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < 10; ++i) {
      const uint32_t of = i % static_cast<uint32_t>(small.size());
      card.Named(s, {Update(large[i], 64 * kMiB, 100 + i), Update(small[of], 2 * kMiB, of + 1)});
    }
  }
  for (CUdeviceptr p : small) PrintDigest("small", p, 2 * kMiB);
  for (CUdeviceptr p : large) PrintDigest("large", p, 64 * kMiB);
  unsigned managed = 9;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, small[3]));
  OK(cuMemGetAddressRange(&base, &bytes, small[3] + 77));
  EXPECT(managed == 0 && base == small[3] && bytes == 2 * kMiB);
  size_t before = 0, after = 0, total = 0;
  for (CUdeviceptr p : large) OK(cuMemFree(p));
  OK(cuMemGetInfo(&before, &total));
  for (CUdeviceptr p : small) OK(cuMemFree(p));
  OK(cuCtxSynchronize());
  Print("freed", cuMemGetAddressRange(&base, &bytes, small[3] + 77) == CUDA_SUCCESS);
  OK(cuMemFree(Alloc(1000)));
  OK(cuMemGetInfo(&after, &total));
  EXPECT(after >= before + 14 * kMiB);  // up to four chunks are kept for later allocations
}

// The hook's own memory is at most 8 MiB and 64 bytes a block.
SCENARIO(bookkeeping_of_many_blocks) {
  Card card;
  constexpr size_t kBlocks = 400'000;
  std::vector<CUdeviceptr> p(kBlocks, 1);
  if (Budget() == 0) return;  // the driver's own bookkeeping is not tested
  const long before = ResidentSetBytes();
  for (auto& at : p) at = Alloc(512);
  const long grown = ResidentSetBytes() - before;
  std::fprintf(stderr, "grown %ld bytes a block %.1f\n", grown, static_cast<double>(grown) / kBlocks);
  EXPECT(grown <= static_cast<long>(8 * kMiB + 64 * kBlocks));
  for (const auto at : p) OK(cuMemFree(at));
}

SCENARIO(ipc_export) {
  Card card;
  const CUdeviceptr p = Alloc(8 * kMiB);
  CUipcMemHandle handle{};
  const CUresult first = cuIpcGetMemHandle(&handle, p), second = cuIpcGetMemHandle(&handle, p);
  std::fprintf(stderr, "codes %d %d\n", first, second);
}

// The program discards its managed memory, prefetches it and writes it, while other memory is evicted around it.
SCENARIO(discards_of_the_program_under_pressure) {
  Card card;
  CUstream s = card.Stream(), t = card.Stream();
  constexpr uint64_t kBytes = 96 * kMiB;
  const CUdeviceptr own = card.Managed(kBytes);
  std::vector<CUdeviceptr> others;
  for (int i = 0; i < 8; ++i) others.push_back(Alloc(kBytes));
  for (uint32_t step = 0; step < 6; ++step) {
    card.Named(s, {Write(own, kBytes, 100 + step)});
    for (uint32_t i = 0; i < 8; ++i) card.Named(t, {Write(others[i], kBytes, step * 10 + i + 1)});
    OK(cuStreamSynchronize(t));
    PrintDigest("own", own, kBytes);
    card.Discard(s, own, kBytes);
    card.Prefetch(s, own, kBytes, true);
    size_t bytes = kBytes, first = 0;
    CUdeviceptr at = own;
    CUmemLocation there{};
    there.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(cuMemDiscardAndPrefetchBatchAsync(&at, &bytes, 1, &there, &first, 1, 0, s));
    OK(cuMemPrefetchBatchAsync(&at, &bytes, 1, &there, &first, 1, 0, s));
  }
  OK(cuCtxSynchronize());
}

// Calls that the driver refuses in device memory (H100, driver 580) are refused in memory that is managed here, too.
SCENARIO(calls_that_need_managed_memory) {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr plain = Alloc(64 * kMiB), own = card.Managed(64 * kMiB);
  CUmemLocation there{};
  there.type = CU_MEM_LOCATION_TYPE_DEVICE;
  for (CUdeviceptr at : {plain, own}) {
    size_t bytes = 4 * kMiB, none = 0, much = 128 * kMiB, first = 0;
    std::printf(
        "prefetch %d advise %d discard %d, of nothing %d, of too much %d, on the legacy stream %d, both %d\n",
        cuMemPrefetchAsync(at, bytes, there, 0, s), cuMemAdvise(at, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, there),
        cuMemDiscardBatchAsync(&at, &bytes, 1, 0, s), cuMemDiscardBatchAsync(&at, &none, 1, 0, s),
        cuMemDiscardBatchAsync(&at, &much, 1, 0, s), cuMemDiscardBatchAsync(&at, &bytes, 1, 0, CU_STREAM_LEGACY),
        cuMemDiscardAndPrefetchBatchAsync(&at, &bytes, 1, &there, &first, 1, 0, s));
    OK(cuStreamSynchronize(s));
  }
  // Each yes or no is an int; memory of a pool belongs to no context.
  CUdeviceptr ordered = 0;
  OK(cuMemAllocAsync(&ordered, 64 * kMiB, s));
  for (const CUdeviceptr at : {plain, own, ordered}) {
    int managed = -1, mapped = -1, direct = -1, syncs = -1;
    CUcontext context = nullptr;
    OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at));
    OK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, at));
    OK(cuPointerGetAttribute(&direct, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
    OK(cuPointerGetAttribute(&syncs, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_CONTEXT;
    void* value = &context;
    OK(cuPointerGetAttributes(1, &name, &value, at));
    const bool is_int = direct == 0 || direct == 1;  // hooked memory says 0: no other process can open it
    std::printf("managed %d mapped %d direct %d syncs %d context %d\n", managed, mapped, is_int, syncs,
                context == nullptr        ? 0
                : context == card.context ? 1
                                          : 2);
  }
}

// Values that streams write into device memory and wait for: large blocks are managed memory here, where the driver
// refuses both.
SCENARIO(stream_values_in_device_memory) {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr word = Alloc(1024), large = Alloc(64 * kMiB), other = Alloc(800 * kMiB);
  OK(cuMemsetD8(word, 0, 1024));
  OK(cuMemsetD8(large, 0, 64 * kMiB));
  card.Launch(s, {Write(other, 800 * kMiB)});
  OK(cuStreamWriteValue32(s, word, 7, 0));
  OK(cuStreamWaitValue32(s, word, 7, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuStreamWriteValue64(s, word + 8, 1ull << 40, 0));
  OK(cuStreamWaitValue64(s, word + 8, 1ull << 40, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuStreamWriteValue32(s, large + 4096, 8, 0));
  OK(cuStreamWriteValue64(s, large + 8192, (1ull << 40) + 3, 0));
  CUstreamBatchMemOpParams list[2]{};
  list[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, large + 16, {9}, 0, 0};
  list[1].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, word + 16, {10}, 0, 0};
  OK(cuStreamBatchMemOp(s, 2, list, 0));
  OK(cuStreamWaitValue32(s, large + 16, 9, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuStreamSynchronize(s));
  uint32_t values[3] = {};
  uint64_t wide = 0;
  OK(cuMemcpyDtoH(&values[0], large + 4096, 4));
  OK(cuMemcpyDtoH(&values[1], large + 16, 4));
  OK(cuMemcpyDtoH(&values[2], word + 16, 4));
  OK(cuMemcpyDtoH(&wide, large + 8192, 8));
  std::printf("values %u %u %u %llu\n", values[0], values[1], values[2], static_cast<unsigned long long>(wide));
}
