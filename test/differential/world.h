// The state of a program while it is made: its objects, and the order of its work. Turns operations into steps that are
// legal CUDA: no race, no read of undefined contents, no call that a capture forbids.
#ifndef SLUICE_TEST_DIFFERENTIAL_WORLD_H_
#define SLUICE_TEST_DIFFERENTIAL_WORLD_H_

#include <initializer_list>
#include <set>
#include <vector>

#include "machine.h"
#include "order.h"
#include "program.h"

namespace differential {

enum BlockKind {
  kAllocated,
  kPitchedRows,
  kManagedMemory,
  kStreamOrdered,
  kFromPool,
  kMapped,
  kGlobalOfModule,
  kInArray,
  kBlockKinds,
  kOpened = kBlockKinds  // of another process
};

struct Context {
  bool live = false, primary = false, green = false;
  int device = 0;
  int family = -1;  // the context whose addresses it shares: a green context's primary, else itself
};
struct Stream {
  bool live = false, blocking = false;
  int number = -1;  // of s[]
  int context = -1, line = -1;
  int thread = -1;   // of a per-thread default stream
  int capture = -1;  // that it is part of
};
struct Line {
  Clock clock;    // everything that its next work waits for, and all of its own
  Clock gate;     // and what its next work waits for besides: an empty stream waits for no gate (H200, driver 580)
  Clock barrier;  // the same when its newest work was queued that runs: the legacy stream's barrier covers no more
  uint32_t last = 0;
  int stream = -1;
};
struct Block {
  bool live = false, defined = false, host = false, table = false, registered = false;
  bool texture = false, surface = false;
  int texture_family = -1;  // of the context that made the texture, from the sixth forms on
  bool is_exportable = false, is_plain = false;
  bool word = false;  // of values that streams write and wait for
  BlockKind kind = kAllocated;
  int context = -1, pool = -1, target = -1;
  int64_t bytes = 0, pitch = 0, rows = 0;
  Stamp write;
  std::vector<Stamp> reads;
};
struct Capture {
  bool open = false;
  int stream = -1, thread = 0, mode = 0;
};
struct Graph {
  bool live = false, has_exec = false, has_condition = false;
  int context = -1;
  std::set<int> reads, writes, needs;  // blocks; `needs` must be defined before
  std::set<int> defines;
  int node_block = -1;  // of the kernel node of a graph built by calls
  int64_t node_bytes = 0;
  Stamp last;
  Clock done;  // behind its last launch, for which the next one waits
};
struct Access {
  int block;
  bool write, whole;
};

class World {
 public:
  explicit World(const Target& target);

  // False, without an effect, if the operation is not possible now.
  bool Apply(const Op& op);
  // Waits for all work, compares all contents, and frees everything by calls if `r` says so.
  void Finish(uint64_t r);

  // Whether another process may use the block, once its work is done.
  bool IsShareable(int block) const;

  const Target& target() const { return target_; }
  const Table<Step>& steps() const { return steps_; }
  // Objects by number. A number that was never made is not live.
  Table<Context> contexts;
  Table<Stream> streams;
  Table<Block> blocks;
  Table<Capture> captures;
  Table<Graph> graphs;
  std::vector<int> pools;  // device, or -1
  int64_t live_bytes = 0, unmanaged_bytes = 0;

 private:
  bool Do(const Op& op);
  bool DoWork(const Op& op);
  bool DoGraph(const Op& op);
  bool DoObjects(const Op& op);

  bool Scratch(const Op& op, Random& random);
  bool Beside(const Op& op, Random& random);
  void Emit(StepKind kind, int thread, std::initializer_list<int64_t> arguments);
  // Makes `context` current on `thread`.
  void Use(int thread, int context);
  int NewLine(int stream, int context);
  // The default streams of a context, made at first use.
  int LegacyStream(int context);
  int PerThreadStream(int context, int thread);
  // Whether `thread` may make calls that captures forbid, use the legacy stream of `context`, and synchronise it.
  bool Unsafe(int thread) const;
  bool LegacyFree(int context) const;
  bool SyncFree(int context) const;
  bool Remap(const Op& op, Random& random);

  // Accounts for new work on a stream.
  // `runs` false: it is no part of the legacy stream's barrier, as an allocation in stream order.
  Stamp Submit(int stream, bool runs = true);
  // Orders the next work of `stream` (-1: of the host) behind `stamp` by one of several ways. False if none is legal
  // now.
  bool Order(int stream, Stamp stamp, int thread, Random& random);
  bool OrderHost(Stamp stamp, int thread, Random& random) { return Order(-1, stamp, thread, random); }
  bool OrderBlock(int stream, int block, bool write, int thread, Random& random);
  bool SyncContext(int context, int thread);
  void HostWaited(int context);  // a call of the host has waited for all work of the context
  void JoinBarrier(int stream);
  // A context and, of a primary one, its green contexts: an event of all their work, and a wait of all their work to
  // come.
  bool IsPart(int stream, int context) const;
  bool MayGate(int context, int thread) const;
  void EmitGate(int context, int event, int thread, const Clock& clock);
  // The block of a context that streams write values to, made by MakeBlock; -1: none yet.
  int ValueWord(int context) const;
  int ThreadFor(int stream, int thread) const { return streams[stream].thread >= 0 ? streams[stream].thread : thread; }
  int EventOf(int context, int thread, Random& random);

  // Checks and orders the accesses of one piece of work on a stream, and makes a context current for it.
  bool Begin(const Op& op, int stream, std::initializer_list<Access> accesses, Random& random);
  bool Live(int block) const { return block >= 0 && block < kMaxBlocks && blocks[block].live; }
  bool LiveStream(int stream) const {
    return stream >= 0 && stream < static_cast<int>(streams.size()) && streams[stream].live;
  }
  // Whether kernels of `context` may use the block.
  bool Reaches(int context, int block) const;
  // The stream of an operation: numbers below 0 are default streams.
  int StreamOf(const Op& op, Random& random);
  void FreeBlock(int block);
  void EndLines(int context);

  bool MakeBlock(const Op& op, Random& random);
  bool EndBlock(const Op& op, Random& random);
  bool HidesWork(int context, int thread) const;
  bool EndContext(const Op& op, Random& random);
  bool Copy(const Op& op, Random& random);
  void NoteCopied(int to, int from);
  bool Fill(const Op& op, Random& random);
  bool HostCopy(const Op& op, Random& random);
  bool ImageCopy(const Op& op, Random& random);
  bool Sample(const Op& op, Random& random);
  bool Slices(const Op& op, Random& random);
  bool Value(const Op& op, Random& random);
  bool Store(const Op& op, Random& random);
  bool Unpack(const Op& op, Random& random);
  bool Past(const Op& op, Random& random);
  bool Barred(const Op& op, Random& random);
  bool Share(const Op& op, Random& random);
  bool SharePooled(const Op& op, Random& random);
  bool Import(const Op& op, Random& random);
  bool BeginCapture(const Op& op, Random& random);
  bool AskMarks(int pool, int thread);
  bool FailAtLast(Random& random);
  bool LaunchExec(const Op& op, Random& random);
  bool Check(int thread);
  bool Ask(const Op& op, Random& random);
  bool Error(const Op& op, Random& random);

  Target target_;
  Table<Step> steps_;
  Table<Line> lines_;
  Clock host_;
  std::vector<Clock> gates_;        // of each context: streams to come wait for it
  int current_[kMaxThreads];        // context of each thread; -1: none
  Table<std::vector<int>> events_;  // of each context
  int next_event_ = 0, next_mark_ = 0, next_word_ = 0, next_semaphore_ = 0;
  std::vector<bool> unpacks_;   // of each pool: it is for decompression
  std::vector<bool> shares_;    // of each pool: another process may use its memory
  bool is_attached_ = false;    // an attachment is ordered, of which nothing says that it waits for gates
  int group_ = 0, groups_ = 0;  // of the steps that are emitted
  int group_line_ = -1;         // in a group: of the one stream whose order the thread knows
};

}  // namespace differential

#endif  // SLUICE_TEST_DIFFERENTIAL_WORLD_H_
