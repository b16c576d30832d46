// Programs: operations that a generator proposes, and the driver calls (steps) that they become.
#ifndef SLUICE_TEST_DIFFERENTIAL_PROGRAM_H_
#define SLUICE_TEST_DIFFERENTIAL_PROGRAM_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace differential {

enum StepKind {
#define STEP(name, expression) name,
#include "steps.def"
#undef STEP
  kStepKinds
};

// One driver call by one program thread. The arguments are the A0 to A7 of steps.def.
// Neighbours with the same `group` above 0 run at the same time, each thread's in order.
struct Step {
  StepKind kind;
  int thread;
  int group;
  std::array<int64_t, 8> a;
};

// The operations of programs; world_*.cc describes the needs and effects of each.
enum class OpKind {
  kMakeContext,
  kMakeGreenContext,
  kEndContext,
  kResetPrimary,
  kRetainRelease,
  kMakeStream,
  kEndStream,
  kMakeBlock,
  kEndBlock,
  kMakePool,
  kEndPool,
  kHostBlock,
  kHostFill,
  kFill,
  kMix,
  kUpdate,
  kChase,
  kCopy,
  kToDevice,
  kToHost,
  kCopy2D,
  kImageCopy,
  kSample,
  kSlices,
  kValue,
  kPrefetch,
  kAdvise,
  kDiscard,
  kAttach,
  kRemap,
  kBeginCapture,
  kEndCapture,
  kBuildGraph,
  kScratch,
  kSetNode,
  kBeside,
  kMakeExec,
  kLaunchExec,
  kEndGraph,
  kReloadModule,
  kEndThread,
  kSync,
  kCheck,
  kAsk,
  kError,
  // Of the second forms (Target::forms).
  kStore,
  kUnpack,
  kPast,
  // Of the third forms.
  kBarred,
  // Of programs with a second process (Target::peers).
  kShare,
  kImport,
};

// An operation names objects by the numbers that they were made with. Without the operation that made an object, those
// that name it are left out, so any part of a program is a program. `r` decides all details.
struct Op {
  OpKind kind;
  int thread = 0;
  int a = -1, b = -1, c = -1, stream = -1;
  uint64_t r = 0;
};

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // In [0, n); n > 0.
  int Below(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  bool OneIn(int n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

// The machine that a program is made for.
struct Target {
  int gpus = 1;
  bool green_contexts = false;
  bool discard = false;
  bool textures = false;
  // 2 to 7: also the later forms; without them the programs of a seed stay as they were.
  int forms = 1;
  // Programs rely on cuMemFree's wait, and on frees, and the legacy stream's events, as parts of its barrier.
  bool waits = false;
  // A second process shares memory and events with the program.
  bool peers = false;
  // Captures into graphs that exist.
  bool appends = false;
  // Programs rely on the order of an executable graph's own launches, in whichever streams.
  bool execs = false;
  // Programs rely on cuMemFree's wait for copies that other contexts' streams hold.
  bool copies = false;
  // GPU memory that a program holds at most, in bytes.
  int64_t live_bytes = 256 << 20;
};

std::vector<Op> Generate(uint64_t seed, int count, const Target& target);
// The steps of a program; operations that are not possible where they stand are left out.
std::vector<Step> Lower(const std::vector<Op>& program, const Target& target);

// Whether a program has a second process, and whether that exports memory of cuMemAlloc.
enum class Peer { kNone, kReads, kExports };
Peer PeerOf(const std::vector<Step>& steps);

// Executes the steps; stops at the first call that fails, which is recorded. Returns its number, or -1.
int Execute(const std::vector<Step>& steps);
// The program as C++ over machine.h.
std::string Print(const std::vector<Step>& steps, const std::string& title);
std::string PrintStep(const Step& step);

}  // namespace differential

#endif  // SLUICE_TEST_DIFFERENTIAL_PROGRAM_H_
