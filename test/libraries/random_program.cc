// Random calls of cuBLAS and cublasLt on random operands in blocks four times the budget, between kernels, copies,
// memsets, frees and a second stream. The calls' kernels name no memory and must not fault, so the engine knows the
// operands from the arguments only. Some calls are invalid. Prints statuses and digests, which must be those of the run
// without the hook.
#include <string>
#include <vector>

#include "test/libraries/program.h"
#include "test/libraries/random.h"

namespace {

using namespace simgpu_test;              // NOLINT(google-build-using-namespace): helpers of the test
using namespace sluice::libraries::test;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kBlock = 64 * kMiB;
constexpr int kBlocks = 16;
std::vector<CUdeviceptr> g_blocks;
uint64_t g_statuses = 0xcbf29ce484222325;

void Note(int status) { g_statuses = (g_statuses ^ static_cast<uint64_t>(status)) * 0x100000001b3; }

// A random place in a block with at least so many bytes behind it.
void* Place(Random* r, uint64_t bytes) {
  EXPECT(bytes <= kBlock);
  const CUdeviceptr block = g_blocks[static_cast<size_t>(r->In(0, kBlocks - 1))];
  const auto last = static_cast<int64_t>((kBlock - bytes) / 256);
  return reinterpret_cast<void*>(block + (r->OneIn(3) ? 0 : static_cast<uint64_t>(r->In(0, last)) * 256));
}

// One of the three sizes is large: operands of up to 24 MiB, in lines with or without gaps.
struct Sizes {
  int values[3];
  explicit Sizes(Random* r) {
    for (int& n : values) n = r->OneIn(40) ? 0 : static_cast<int>(r->In(1, 6));
    values[r->In(0, 2)] = static_cast<int>(r->In(1, r->OneIn(4) ? 1 << 20 : 1 << 16));
  }
};
// At most 48 MiB in all. Many short lines have no gaps, since each separate line is a touch of its own.
int Ld(Random* r, int line, int lines) {
  if (line == 0) line = 1;
  const int max_ld = (12 << 20) / (lines > 0 ? lines : 1);
  return line + (r->OneIn(2) || lines > 64 || line >= max_ld ? 0 : static_cast<int>(r->In(0, max_ld - line)));
}
uint64_t Bytes(int line, int lines, int ld) {
  if (line <= 0 || lines <= 0) return 4;
  return 4 * (static_cast<uint64_t>(lines - 1) * static_cast<uint64_t>(ld) + static_cast<uint64_t>(line));
}

void Gemm(Random* r) {
  static int handle = 0;
  const auto sizes = Sizes(r);
  const auto& [m, n, k] = sizes.values;  // of a copy, clang's analyzer would crash
  const int ta = r->OneIn(2), tb = r->OneIn(2);
  const int a_line = ta ? k : m, a_lines = ta ? m : k, b_line = tb ? n : k, b_lines = tb ? k : n;
  const float alpha = 1, beta = r->OneIn(2) ? 0.0F : 0.5F;
  const int lda = Ld(r, a_line, a_lines), ldb = Ld(r, b_line, b_lines), ldc = Ld(r, m, n);
  void *a = Place(r, Bytes(a_line, a_lines, lda)), *b = Place(r, Bytes(b_line, b_lines, ldb)),
       *c = Place(r, Bytes(m, n, ldc));
  int rows = m;
  if (r->OneIn(16)) a = nullptr;
  if (r->OneIn(32)) rows = -m;
  Note(cublasSgemm_v2(&handle, ta, tb, rows, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc));
}

Layout LayoutOf(Random* r, int rows, int columns, int batch) {
  Layout l{0, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), 0};
  l.order = r->OneIn(2) ? 1 : 0;
  l.batch = batch;
  l.ld = (l.order ? columns : rows) + (r->OneIn(2) ? 0 : r->In(0, 64));
  const int64_t lines = l.order ? rows : columns;
  l.stride = batch > 1 ? l.ld * lines + (r->OneIn(2) ? 0 : r->In(0, 1 << 20)) : 0;
  return l;
}
uint64_t Bytes(const Layout& l) {
  const auto line = static_cast<int64_t>(l.order ? l.columns : l.rows),
             lines = static_cast<int64_t>(l.order ? l.rows : l.columns);
  return 4 * static_cast<uint64_t>((l.batch - 1) * l.stride + (lines - 1) * l.ld + line);
}

// Small sizes, since the fake library touches each line separately.
void Lt(Random* r) {
  static int handle = 0;
  const int m = static_cast<int>(r->In(1, 40)), n = static_cast<int>(r->In(1, 40)), k = static_cast<int>(r->In(1, 40));
  const int batch = r->OneIn(3) ? static_cast<int>(r->In(2, 4)) : 1;
  Layout a = LayoutOf(r, m, k, batch), b = LayoutOf(r, k, n, batch), c = LayoutOf(r, m, n, batch), d = c;
  MatmulDesc operation;
  const float alpha = 1, beta = r->OneIn(2) ? 0.0F : 1.0F;
  if (r->OneIn(2)) {
    operation.epilogue = 4;
    operation.bias = Place(r, static_cast<uint64_t>(m) * 4);
  }
  void* const to = Place(r, Bytes(d));
  void* const from = r->OneIn(2) ? to : Place(r, Bytes(c));
  const uint64_t space = r->OneIn(2) ? static_cast<uint64_t>(r->In(1, 4 << 20)) : 0;
  void* const workspace = space ? Place(r, space) : nullptr;
  if (r->OneIn(16)) (r->OneIn(2) ? b : d).alive = false;  // destroyed
  Note(cublasLtMatmul(&handle, &operation, &alpha, Place(r, Bytes(a)), &a, Place(r, Bytes(b)), &b, &beta, from, &c, to,
                      r->OneIn(64) ? nullptr : &d, nullptr, workspace, space, nullptr));
}

}  // namespace

int main(int, char** arguments) {
  Random random(std::strtoull(arguments[1], nullptr, 10));
  Random* const r = &random;
  const long calls = std::strtol(arguments[2], nullptr, 10);
  Card card;
  for (int i = 0; i < kBlocks; ++i) {
    g_blocks.push_back(card.Unmanaged(kBlock));
    Touch(card, Write(g_blocks.back(), kBlock));
  }
  CUstream side = card.Stream();
  std::vector<char> host(4 * kMiB, 7);
  // Before a write, a duplicate's advice is withdrawn at once, so earlier queued reads may fault.
  cublasFakeSetMode(std::getenv("MAY_FAULT") ? "exactly, or by faults" : "exactly", nullptr, nullptr);
  cublasLtFakeSetInner(std::getenv("MAY_FAULT") ? 4 : 3);
  for (long call = 0; call < calls; ++call) {
    const CUdeviceptr block = g_blocks[static_cast<size_t>(r->In(0, kBlocks - 1))];
    const auto some = static_cast<uint64_t>(r->In(1, 4 * kMiB));
    switch (r->In(0, 11)) {
      case 0:
        Touch(card, r->OneIn(2) ? Read(block, kBlock) : Update(block, kBlock));
        break;
      case 1:
        OK(cuMemcpyHtoDAsync(block + static_cast<uint64_t>(r->In(0, 32)) * kMiB, host.data(), some, nullptr));
        break;
      case 2:
        OK(cuMemsetD8Async(block + static_cast<uint64_t>(r->In(0, 32)) * kMiB, 3, some, nullptr));
        break;
      case 3: {  // a block is freed, and another allocated
        const auto which = static_cast<size_t>(r->In(0, kBlocks - 1));
        if (!r->OneIn(8)) break;
        OK(cuMemFree(g_blocks[which]));
        g_blocks[which] = card.Unmanaged(kBlock);
        Touch(card, Write(g_blocks[which], kBlock));
        break;
      }
      case 4:  // on a stream of its own, without other work
        OK(cuCtxSynchronize());
        EXPECT(cublasSetStream_v2(nullptr, side) == 0);
        Gemm(r);
        EXPECT(cublasSetStream_v2(nullptr, nullptr) == 0);
        OK(cuCtxSynchronize());
        break;
      case 5:
      case 6:
      case 7:
        Lt(r);
        break;
      default:
        Gemm(r);
    }
    // A host that runs ahead of the GPU fills the queues, and then faults are allowed.
    if (call % 4 == 3) OK(cuCtxSynchronize());
  }
  OK(cuCtxSynchronize());
  EXPECT(card.Stats().duplicate_write_bytes == 0);
  std::printf("statuses %llx\n", static_cast<unsigned long long>(g_statuses));
  for (const CUdeviceptr block : g_blocks)
    std::printf("%llx\n", static_cast<unsigned long long>(simgpu_digest(block, kBlock)));
  std::puts("done");
  return 0;
}
