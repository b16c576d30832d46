// Library calls that overwrite their result whole, on evicted results: measures the fetched bytes, and prints digests
// of the results, which must be those of the run without the hook.
#include "test/libraries/program.h"

namespace {

using namespace simgpu_test;              // NOLINT(google-build-using-namespace): helpers of the test
using namespace sluice::libraries::test;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kBlock = 192 * kMiB, kOther = 512 * kMiB;
constexpr int kSide = 2896;  // squared, in floats: 64 bytes less than 32 MiB
CUdeviceptr g_block, g_other;
Card* g_card;

// A is at 0, B at 64, C at 128 MiB of the block. Uses the other block, which evicts this one, then calls. `wanted`: MiB
// that must be fetched; 0: not checked, since other work fetches as well.
template <typename Call>
void Case(const char* name, uint64_t wanted, Call call) {
  Touch(*g_card, Write(g_block, kBlock));
  for (int i = 0; i < 2; ++i) Touch(*g_card, Read(g_other, kOther));
  OK(cuCtxSynchronize());
  const auto before = g_card->Stats();
  EXPECT(call() == 0);
  OK(cuCtxSynchronize());
  const auto after = g_card->Stats();
  const uint64_t in = after.prefetch_in_bytes + after.fault_bytes - before.prefetch_in_bytes - before.fault_bytes;
  std::fprintf(stderr, "%s: %llu MiB fetched\n", name, static_cast<unsigned long long>(in >> 20));
  if (wanted && UnderPressure()) EXPECT(in <= (wanted + 4) * kMiB && in + 4 * kMiB >= wanted * kMiB);
  std::printf("%s %llx\n", name, static_cast<unsigned long long>(simgpu_digest(g_block, kBlock)));
}

void* At(uint64_t mebibyte) { return reinterpret_cast<void*>(g_block + mebibyte * kMiB); }

}  // namespace

int main() {
  Card card;
  g_card = &card;
  g_block = card.Unmanaged(kBlock);
  g_other = card.Unmanaged(kOther);
  Touch(*g_card, Write(g_other, kOther));
  CUstream side = card.Stream();
  CUstream blocking = nullptr;
  CUevent event = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const bool results_are_not_fetched = std::getenv("NO_FETCH_OF_RESULTS") != nullptr;
  const uint64_t read = 64, all = 96, result = results_are_not_fetched ? read : all;
  int handle = 0;
  const float alpha = 1, zero = 0, one = 1;
  auto gemm = [&](const float* beta, uint64_t a, uint64_t b, uint64_t c) {
    return cublasSgemm_v2(&handle, 0, 0, kSide, kSide, kSide, &alpha, At(a), kSide, At(b), kSide, beta, At(c), kSide);
  };
  cublasFakeSetMode("overwrite", nullptr, nullptr);
  Case("beta zero", result, [&] { return gemm(&zero, 0, 64, 128); });
  Case("one megabyte on", result, [&] { return gemm(&zero, 0, 64, 129); });
  // These results must not be taken for overwritten.
  cublasFakeSetMode("update", nullptr, nullptr);
  Case("beta one", all, [&] { return gemm(&one, 0, 64, 128); });
  Case("in place", read, [&] { return gemm(&zero, 0, 64, 0); });
  Case("overlapping", 80, [&] { return gemm(&zero, 0, 64, 80); });
  // Calls of several launches: later ones read results of earlier ones.
  cublasFakeSetMode("write, then update", nullptr, nullptr);
  Case("two launches", result, [&] { return gemm(&zero, 0, 64, 128); });
  cublasFakeSetMode("memset, then update", nullptr, nullptr);
  Case("cleared first", result, [&] { return gemm(&zero, 0, 64, 128); });
  cublasFakeSetMode("clear half, then write the rest", nullptr, nullptr);
  Case("half and half", results_are_not_fetched ? 80 : all, [&] { return gemm(&zero, 0, 64, 128); });
  cublasFakeSetMode("side writes half", side, event);
  Case("a second stream", all, [&] { return gemm(&zero, 0, 64, 128); });
  // On a blocking stream the library's own streams need no event to join.
  cublasFakeSetMode("overwrite", nullptr, nullptr);
  OK(cuStreamSynchronize(nullptr));
  EXPECT(cublasSetStream_v2(&handle, blocking) == 0);
  Case("a blocking stream", all, [&] { return gemm(&zero, 0, 64, 128); });
  EXPECT(cublasSetStream_v2(&handle, side) == 0);
  Case("a stream of its own", result, [&] { return gemm(&zero, 0, 64, 128); });
  EXPECT(cublasSetStream_v2(&handle, nullptr) == 0);
  // Refused: the result is as it was.
  Touch(*g_card, Write(g_block, kBlock));
  EXPECT(cublasSgemm_v2(&handle, 0, 0, -1, kSide, kSide, &alpha, At(0), kSide, At(64), kSide, &zero, At(128), kSide) ==
         7);
  // A library that calls another one, which writes the outer call's result.
  const Layout layout{0, kSide, kSide, kSide};
  MatmulDesc operation;
  auto lt = [&](const void* beta, uint64_t c) {
    auto* l = const_cast<Layout*>(&layout);
    return cublasLtMatmul(&handle, &operation, &alpha, At(0), l, At(64), l, beta, At(c), l, At(128), l, nullptr,
                          nullptr, 0, nullptr);
  };
  Case("cublasLt", result, [&] { return lt(&zero, 128); });
  cublasLtFakeSetInner(1);
  Case("one library in another", result, [&] { return lt(&zero, 128); });
  cublasLtFakeSetInner(0);
  // Between two launches of a call, another thread's work evicts the first one's result, which the second one reads.
  cublasFakeSetWorkBetween([] {
    OK(cuCtxSetCurrent(g_card->context));
    for (int i = 0; i < 2; ++i) Touch(*g_card, Read(g_other, kOther));
    OK(cuCtxSynchronize());
  });
  cublasFakeSetMode("write, wait, then update", nullptr, nullptr);
  Case("others in between", 0, [&] { return gemm(&zero, 0, 64, 128); });
  cublasFakeSetMode("overwrite", nullptr, nullptr);
  cublasLtFakeSetInner(2);
  Case("others between two libraries", 0, [&] { return lt(&zero, 128); });
  cublasLtFakeSetInner(0);
  // Pointers of a copied array are assumed, not proven, so nothing counts as overwritten.
  const void *a[] = {At(0)}, *b[] = {At(64)};
  void* c[] = {At(128)};
  CUdeviceptr arrays = card.Unmanaged(16384);
  OK(cuMemcpyHtoD(arrays, a, sizeof a));
  OK(cuMemcpyHtoD(arrays + 4096, b, sizeof b));
  OK(cuMemcpyHtoD(arrays + 8192, c, sizeof c));
  Case("pointer arrays", all, [&] {
    return cublasSgemmBatched(&handle, 0, 0, kSide, kSide, kSide, &alpha, reinterpret_cast<const void* const*>(arrays),
                              kSide, reinterpret_cast<const void* const*>(arrays + 4096), kSide, &zero,
                              reinterpret_cast<void* const*>(arrays + 8192), kSide, 1);
  });
  std::puts("done");
  return 0;
}
