// Workloads that thrash under an engine which fetches the operands that launches name, on the simulated GPU: far too
// much memory, no order, or operands of which little is touched. Prints virtual microseconds a launch: of the second
// half of LAUNCHES (the settled state), of the first 256 and of all (the cost of settling).
//   thrash_bench NAME LIVE_MIB [LAUNCHES [PHASES [AHEAD]]]
// The program waits for the GPU after each AHEAD launches (default 64; 0: never, so that only the
// driver limits its run-ahead). The whole is repeated PHASES times; before each phase but the first it waits for a line
// on stdin (a neighbour starts or ends).
#include <algorithm>
#include <random>
#include <string>

#include "simgpu/tests/card.h"
#include "trace/replay/sleep.h"

namespace {

using simgpu_test::kMiB;
using simgpu_test::Read;
using simgpu_test::Update;

constexpr uint64_t kBlock = 64 * kMiB, kPage = 64 << 10;

struct Program {
  simgpu_test::Card card;
  CUmodule module = nullptr;
  CUfunction four = nullptr;
  CUstream stream = nullptr;
  std::vector<CUdeviceptr> blocks;
  CUdeviceptr table = 0, hot = 0;
  uint64_t live = 0;
  std::mt19937_64 random{11};

  explicit Program(uint64_t bytes) : live(bytes) {
    OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel four params 8,8,8,8 ns 20000\n"));
    OK(cuModuleGetFunction(&four, module, "four"));
    stream = card.Stream();
  }
  CUdeviceptr Take(uint64_t bytes) {
    CUdeviceptr p = 0;
    OK(cuMemAlloc(&p, bytes));
    for (uint64_t at = 0; at < bytes; at += kBlock) {
      const uint64_t part = std::min(kBlock, bytes - at);
      Launch({p}, {simgpu_test::Write(p + at, part)}, 1);
    }
    return p;
  }
  void TakeBlocks(uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += kBlock) blocks.push_back(Take(kBlock));
  }
  // `shape` is the launch's grid, by which the engine distinguishes launches of one function.
  void Launch(std::vector<CUdeviceptr> named, const std::vector<simgpu_touch>& touches, unsigned shape,
              uint64_t ns = 100'000) {
    simgpu_next_launch(touches.data(), touches.size(), ns, 0);
    named.resize(4);
    void* params[4];
    for (size_t i = 0; i < 4; ++i) params[i] = &named[i];
    OK(cuLaunchKernel(four, shape, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
  }
  uint64_t Pick(uint64_t n) { return random() % n; }
};

simgpu_touch Again(simgpu_touch touch, uint32_t passes) {
  touch.access |= SIMGPU_PASSES(passes);
  return touch;
}

// Updates one whole block after the other, as a training step does.
void Walk(Program& p, uint64_t i) {
  p.Launch({p.blocks[i % p.blocks.size()]}, {Update(p.blocks[i % p.blocks.size()], kBlock)}, 1);
}
// The same by kernels that read their operand many times, as products of matrices do.
void Reread(Program& p, uint64_t i) {
  const CUdeviceptr at = p.blocks[i % p.blocks.size()];
  p.Launch({at}, {Again(Read(at, kBlock), 32)}, 1);
}
void Random(Program& p, uint64_t) {
  const CUdeviceptr at = p.blocks[p.Pick(p.blocks.size())];
  p.Launch({at}, {Update(at, kBlock)}, 1);
}
void RandomReread(Program& p, uint64_t) {
  const CUdeviceptr at = p.blocks[p.Pick(p.blocks.size())];
  p.Launch({at}, {Again(Read(at, kBlock), 32)}, 1);
}
// Launches name whole blocks and touch one part.
void Corner(Program& p, uint64_t i) {
  const CUdeviceptr at = p.blocks[i % p.blocks.size()];
  p.Launch({at}, {Again(Update(at + p.Pick(16) * 4 * kMiB, 4 * kMiB), 32)}, 1);
}
// Reads a few rows of a table that is far larger than the budget.
void Lookup(Program& p, uint64_t, uint32_t passes) {
  std::vector<simgpu_touch> touches{Update(p.hot, kBlock)};
  for (int row = 0; row < 16; ++row)
    touches.push_back(Again(Read(p.table + p.Pick(p.live / kPage) * kPage, kPage), passes));
  p.Launch({p.table, p.hot}, touches, 1);
}
// Reads rows of one of several tables, each smaller than the budget.
void Lookups(Program& p, uint64_t i, uint32_t passes) {
  const uint64_t tables = 8, bytes = p.live / tables / kMiB * kMiB;
  std::vector<simgpu_touch> touches{Update(p.hot, kBlock)};
  for (int row = 0; row < 16; ++row)
    touches.push_back(Again(Read(p.blocks[i % tables] + p.Pick(bytes / kPage) * kPage, kPage), passes));
  p.Launch({p.blocks[i % tables], p.hot}, touches, 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: thrash_bench NAME LIVE_MIB [LAUNCHES [PHASES [AHEAD]]]\n");
    return 2;
  }
  const std::string name = argv[1];
  const uint64_t live = std::strtoull(argv[2], nullptr, 10) * kMiB;
  const uint64_t launches = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 4000;
  Program p(live);
  sluice::replay::SleepOnSimulatedClock(&simgpu_advance_host);
  void (*work)(Program&, uint64_t) = nullptr;
  if (name == "pool" || name == "pool_reread") {
    // A program that allocates once and divides the allocation itself: each pointer leads into the whole.
    CUdeviceptr all = 0;
    OK(cuMemAlloc(&all, live));
    for (uint64_t at = 0; at + kBlock <= live; at += kBlock) {
      p.blocks.push_back(all + at);
      p.Launch({all + at}, {simgpu_test::Write(all + at, kBlock)}, 2);
    }
    work = name == "pool" ? Walk : Reread;
  } else if (name == "walk" || name == "reread" || name == "random" || name == "random_reread" || name == "corner") {
    p.TakeBlocks(live);
    work = name == "walk"     ? Walk
           : name == "reread" ? Reread
           : name == "random" ? Random
           : name == "corner" ? Corner
                              : RandomReread;
  } else if (name == "lookup" || name == "lookup_reread") {
    p.hot = p.Take(kBlock);
    p.table = p.Take(live);
    work = name == "lookup" ? [](Program& q, uint64_t i) { Lookup(q, i, 1); }
                            : [](Program& q, uint64_t i) { Lookup(q, i, 256); };
  } else if (name == "lookups" || name == "lookups_reread") {
    p.hot = p.Take(kBlock);
    for (int i = 0; i < 8; ++i) p.blocks.push_back(p.Take(live / 8 / kMiB * kMiB));
    work = name == "lookups" ? [](Program& q, uint64_t i) { Lookups(q, i, 1); }
                             : [](Program& q, uint64_t i) { Lookups(q, i, 256); };
  } else {
    std::fprintf(stderr, "thrash_bench: no workload '%s'\n", name.c_str());
    return 2;
  }
  const int phases = argc > 4 ? std::atoi(argv[4]) : 1;
  const uint64_t ahead = argc > 5 ? std::strtoull(argv[5], nullptr, 10) : 64;
  const uint64_t first = std::min<uint64_t>(256, launches / 2);
  // Timed by events: waiting in between would change the program.
  const auto mark = [&p](CUevent* event) {
    OK(cuEventCreate(event, CU_EVENT_DEFAULT));
    OK(cuEventRecord(*event, p.stream));
  };
  const auto each = [](CUevent from, CUevent to, uint64_t n) {
    float ms = 0;
    OK(cuEventElapsedTime(&ms, from, to));
    return static_cast<double>(ms) * 1e3 / static_cast<double>(n);
  };
  uint64_t i = 0;
  for (int phase = 0; phase < phases; ++phase) {
    if (phase > 0 && std::getchar() == EOF) return 1;
    OK(cuStreamSynchronize(p.stream));
    CUevent begin, after_first, half, end;
    mark(&begin);
    for (uint64_t n = 0; n < launches; ++n, ++i) {
      if (n == first) mark(&after_first);
      if (n == launches / 2) mark(&half);
      work(p, i);
      if (ahead && i % ahead == ahead - 1) OK(cuStreamSynchronize(p.stream));  // as a program does after each step
    }
    mark(&end);
    OK(cuStreamSynchronize(p.stream));
    std::fprintf(stderr, "resident at the end: %.0f MiB, peak %.0f\n",
                 static_cast<double>(p.card.Stats().resident_bytes) / 0x1p20,
                 static_cast<double>(p.card.Stats().resident_peak_bytes) / 0x1p20);
    std::printf("%.1f %.1f %.1f\n", each(half, end, launches - launches / 2), each(begin, after_first, first),
                each(begin, end, launches));
    std::fflush(stdout);
  }
  return 0;
}
