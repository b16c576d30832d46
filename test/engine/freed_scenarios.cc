// Memory that PyTorch reports as freed while work that uses it is still queued: discarded in the stream's order.
#include "test/engine/report.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBlock = 64 * kMiB;

// Segments as PyTorch's caching allocator takes them, each one block.
struct Segments {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> at;
  explicit Segments(int count) {
    for (int i = 0; i < count; ++i) at.push_back(Alloc(kBlock));
  }
  void Take(size_t i) const { Report(at[i], static_cast<long>(kBlock)); }
  void Drop(size_t i) const { Report(at[i], -static_cast<long>(kBlock)); }
};

// False where the hook is absent or everything fits its budget.
bool IsPressed(const Segments& segments) { return Budget() != 0 && Budget() < segments.at.size() * kBlock; }

}  // namespace

// The host is a whole step ahead of the GPU, and the step frees its activations: none of them crosses the link.
SCENARIO(freed_while_the_gpu_is_behind) {
  Segments all(16);
  Card& card = all.card;
  const CUdeviceptr sum = Alloc(4096);
  card.Named(all.s, {Write(sum, 4096, 1)});
  uint64_t before = 0;
  for (uint32_t step = 0; step < 8; ++step) {
    if (step == 4) before = card.Stats().prefetch_out_bytes;
    for (size_t i = 0; i < all.at.size(); ++i) {
      all.Take(i);
      card.Named(all.s, {Write(all.at[i], kBlock, step * 100 + static_cast<uint32_t>(i) + 2)}, 2'000'000);
      card.Named(all.s, {Read(all.at[i], kBlock, step * 100 + static_cast<uint32_t>(i) + 2), Update(sum, 4096, 1)},
                 2'000'000);
      all.Drop(i);
    }
  }
  OK(cuStreamSynchronize(all.s));
  const uint64_t out = card.Stats().prefetch_out_bytes - before;
  const char* mode = std::getenv("SLUICE_PREFETCH");
  const char* discard = std::getenv("SLUICE_DISCARD");
  const bool copied = discard && *discard == '0';
  if (IsPressed(all) && AreReportsTaken() && mode && *mode != 'o') EXPECT((out > 0) == copied);
  PrintDigest("sum", sum, 4096);
}

// The last use of a block is over, as an event has shown its owner. The block is reused on another stream while the
// first stream has not reached the discard.
SCENARIO(freed_and_reused_by_another_stream) {
  Segments all(12);
  Card& card = all.card;
  CUstream t = card.Stream();
  CUevent over = nullptr;
  OK(cuEventCreate(&over, CU_EVENT_DISABLE_TIMING));
  const CUdeviceptr sum = Alloc(4096);
  card.Named(all.s, {Write(sum, 4096, 1)});
  for (size_t i = 0; i < all.at.size(); ++i) all.Take(i);
  for (uint32_t round = 0; round < 6; ++round) {
    const size_t own = round % 2;
    for (int i = 0; i < 400; ++i) card.Named(all.s, {Update(sum, 4096, 1)}, 1000);  // one stream works alone
    card.Named(all.s, {Write(all.at[own], kBlock, 10 + round)}, 10'000);
    OK(cuEventRecord(over, all.s));
    OK(cuEventSynchronize(over));
    card.Named(all.s, {Update(sum, 4096, 1)}, 30'000'000);
    all.Drop(own);
    // Room is needed: the freed block is discarded first, behind the long kernel.
    for (size_t i = 2; i < all.at.size(); ++i)
      card.Named(all.s, {Write(all.at[i], kBlock, 30 + static_cast<uint32_t>(i))}, 10'000);
    all.Take(own);
    // No parameter shows it. It is populated all the same, and other streams wait for the discard, so the write stays.
    card.Launch(t, {Write(all.at[own], kBlock, 60 + round)}, 10'000);
    OK(cuStreamSynchronize(t));
    OK(cuStreamSynchronize(all.s));
    card.Named(t, {Read(all.at[own], kBlock, 60 + round)}, 10'000);
    PrintDigest("taken", all.at[own], kBlock);
  }
  PrintDigest("sum", sum, 4096);
}

// A table of three times the budget is filled part by part, through two temporaries that just fit the budget. They are
// freed and reused while the GPU is behind, and launches that do not fit write their discarded chunks.
SCENARIO(freed_and_written_again) {
  constexpr uint64_t kTemporary = 256 * kMiB, kPart = 64 * kMiB;
  constexpr uint32_t kParts = 24;
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr table = Alloc(kParts * kPart);
  CUdeviceptr temporary[2] = {Alloc(kTemporary), Alloc(kTemporary)};
  const auto take = [&](CUdeviceptr p) { Report(p, static_cast<long>(kTemporary)); };
  const auto drop = [&](CUdeviceptr p) { Report(p, -static_cast<long>(kTemporary)); };
  Report(table, static_cast<long>(kParts * kPart));
  for (uint32_t i = 0; i < kParts; ++i) {
    const uint32_t first = 3 * i + 1, second = first + 1;
    const auto [a, b] = temporary;
    take(a);
    card.Named(s, {Write(a, kTemporary, first)});
    card.Named(s, {Update(a, kTemporary, first)});
    take(b);
    card.Named(s, {Read(a, kTemporary, first), Write(b, kTemporary, second)});
    drop(a);
    card.Named(s, {Read(b, kTemporary, second), Write(table + i * kPart, kPart, 1000)});
    drop(b);
    if (i % 3 == 2) std::swap(temporary[0], temporary[1]);
  }
  for (uint32_t i = 0; i < kParts; ++i) PrintDigest("part", table + i * kPart, kPart);
}
