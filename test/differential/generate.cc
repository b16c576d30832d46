// Random programs. The world says which proposals are legal.
#include <algorithm>
#include <iterator>

#include "world.h"

namespace differential {
namespace {

struct Weight {
  OpKind kind;
  int weight;
};

// Work outweighs the rest, so that objects are used between their birth and their end.
constexpr Weight kWeights[] = {
    {OpKind::kMakeContext, 1},   {OpKind::kMakeGreenContext, 2},
    {OpKind::kEndContext, 1},    {OpKind::kResetPrimary, 1},
    {OpKind::kRetainRelease, 1}, {OpKind::kMakeStream, 6},
    {OpKind::kEndStream, 3},     {OpKind::kMakeBlock, 22},
    {OpKind::kEndBlock, 12},     {OpKind::kMakePool, 2},
    {OpKind::kEndPool, 1},       {OpKind::kHostBlock, 4},
    {OpKind::kHostFill, 2},      {OpKind::kFill, 22},
    {OpKind::kMix, 20},          {OpKind::kUpdate, 20},
    {OpKind::kChase, 3},         {OpKind::kCopy, 12},
    {OpKind::kToDevice, 6},      {OpKind::kToHost, 6},
    {OpKind::kCopy2D, 3},        {OpKind::kPrefetch, 3},
    {OpKind::kAdvise, 3},        {OpKind::kDiscard, 2},
    {OpKind::kAttach, 1},        {OpKind::kRemap, 4},
    {OpKind::kBeginCapture, 4},  {OpKind::kEndCapture, 4},
    {OpKind::kBuildGraph, 2},    {OpKind::kMakeExec, 5},
    {OpKind::kLaunchExec, 8},    {OpKind::kEndGraph, 1},
    {OpKind::kReloadModule, 1},  {OpKind::kEndThread, 2},
    {OpKind::kSync, 4},          {OpKind::kCheck, 2},
    {OpKind::kAsk, 4},           {OpKind::kError, 2},
    {OpKind::kScratch, 3},       {OpKind::kSetNode, 2},
    {OpKind::kBeside, 1},        {OpKind::kImageCopy, 6},
    {OpKind::kSample, 4},        {OpKind::kSlices, 3},
    {OpKind::kValue, 3},
};

// Of the second forms.
constexpr Weight kMoreWeights[] = {{OpKind::kStore, 5}, {OpKind::kUnpack, 2}, {OpKind::kPast, 4}};

// Of the third forms.
constexpr Weight kLatestWeights[] = {{OpKind::kBarred, 4}};

// Of programs with a second process.
constexpr Weight kPeerWeights[] = {{OpKind::kShare, 8}, {OpKind::kImport, 4}};

// Added for programs that launch graphs again and again, in several streams.
constexpr Weight kGraphWeights[] = {{OpKind::kMakeStream, 6},  {OpKind::kBeginCapture, 12}, {OpKind::kEndCapture, 20},
                                    {OpKind::kBuildGraph, 12}, {OpKind::kMakeExec, 30},     {OpKind::kSetNode, 20},
                                    {OpKind::kLaunchExec, 60}};

class Generator {
 public:
  Generator(uint64_t seed, const Target& target) : random_(seed), world_(target) {
    total_ = 0;
    // Each program leaves some operations out and prefers others: uniform programs all look alike (Groce et al.,
    // "Swarm Testing", ISSTA 2012).
    for (size_t i = 0; i < std::size(kWeights); ++i) {
      const int times = random_.Below(4);
      const bool basic = kWeights[i].kind == OpKind::kMakeBlock || kWeights[i].kind == OpKind::kFill;
      weights_[i] = kWeights[i].weight * (basic && times == 0 ? 1 : times);
      total_ += weights_[i];
    }
    threads_ = 1 + random_.Below(4);
    for (size_t i = 0; target.forms >= 2 && i < std::size(kMoreWeights); ++i) {
      more_[i] = kMoreWeights[i].weight * random_.Below(4);
      total_ += more_[i];
    }
    for (size_t i = 0; target.forms >= 3 && i < std::size(kLatestWeights); ++i) {
      latest_[i] = kLatestWeights[i].weight * random_.Below(4);
      total_ += latest_[i];
    }
    // A second process costs as much time as the program: one program of six has it.
    has_peer_ = target.peers && random_.OneIn(6);
    for (size_t i = 0; has_peer_ && i < std::size(kPeerWeights); ++i) {
      peer_[i] = kPeerWeights[i].weight * (1 + random_.Below(3));
      total_ += peer_[i];
    }
    if (target.execs && random_.OneIn(3)) {
      for (const Weight& more : kGraphWeights) AddWeight(more);
    }
  }

  std::vector<Op> Make(int count) {
    std::vector<Op> program;
    for (int tries = 0; static_cast<int>(program.size()) < count && tries < count * 12; ++tries) {
      const Op op = Propose();
      if (world_.steps().size() > 4000) break;
      if (world_.Apply(op)) program.push_back(op);
    }
    return program;
  }

 private:
  void AddWeight(const Weight& more) {
    const auto* const at = std::find_if(std::begin(kWeights), std::end(kWeights),
                                        [&](const Weight& one) { return one.kind == more.kind; });
    weights_[at - kWeights] += more.weight;
    total_ += more.weight;
  }
  OpKind Kind() {
    int at = random_.Below(total_);
    size_t i = 0;
    for (; i < std::size(kWeights); ++i) {
      if (at < weights_[i]) return kWeights[i].kind;
      at -= weights_[i];
    }
    for (i = 0; i < std::size(kMoreWeights); ++i) {
      if (at < more_[i]) return kMoreWeights[i].kind;
      at -= more_[i];
    }
    for (i = 0; i < std::size(kLatestWeights); ++i) {
      if (at < latest_[i]) return kLatestWeights[i].kind;
      at -= latest_[i];
    }
    for (i = 0; at >= peer_[i]; ++i) at -= peer_[i];
    return kPeerWeights[i].kind;
  }
  // One of the numbers below `count` for which `is` holds, or -1.
  template <class F>
  int OneOf(int count, F is) {
    int found = -1, seen = 0;
    for (int i = 0; i < count; ++i) {
      if (is(i) && random_.Below(++seen) == 0) found = i;
    }
    return found;
  }
  int Block(bool host, int most = kMaxBlocks) {
    return OneOf(most, [&](int i) { return world_.blocks[i].live && world_.blocks[i].host == host; });
  }
  int Defined() {
    return OneOf(kMaxBlocks,
                 [&](int i) { return world_.blocks[i].live && world_.blocks[i].defined && !world_.blocks[i].host; });
  }
  int ManagedBlock() {
    return OneOf(kMaxBlocks, [&](int i) {
      return world_.blocks[i].live && world_.blocks[i].kind == kManagedMemory && !world_.blocks[i].host;
    });
  }
  int Shareable() {
    // Most blocks are of cuMemAlloc, which the hook does not export.
    const int found =
        OneOf(kMaxBlocks, [&](int i) { return world_.IsShareable(i) && world_.blocks[i].kind != kAllocated; });
    if (found >= 0 && !random_.OneIn(3)) return found;
    return OneOf(kMaxBlocks, [&](int i) { return world_.IsShareable(i); });
  }
  int ContextNumber() {
    return OneOf(kMaxContexts, [&](int i) { return world_.contexts[i].live; });
  }
  int StreamNumber() {
    if (random_.OneIn(4))
      return -1 - OneOf(kMaxContexts, [&](int i) { return world_.contexts[i].live && !world_.contexts[i].green; });
    const int stream = OneOf(kMaxStreams, [&](int i) { return world_.streams[i].live; });
    return stream >= 0 ? stream : -1;
  }
  int LiveGraph() {
    return OneOf(kMaxGraphs, [&](int i) { return world_.graphs[i].live; });
  }

  Op Propose() {
    Op op;
    op.kind = Kind();
    op.thread = random_.Below(threads_);
    op.r = random_.Next();
    op.stream = StreamNumber();
    switch (op.kind) {
      case OpKind::kMakeContext:
      case OpKind::kMakeGreenContext:
        op.a = next_context_ < kMaxContexts ? next_context_ : 0;
        if (!world_.contexts[op.a].live) ++next_context_;
        break;
      case OpKind::kEndContext:
      case OpKind::kReloadModule:
        op.a = ContextNumber();
        break;
      case OpKind::kResetPrimary:
      case OpKind::kRetainRelease:
        op.a = random_.Below(world_.target().gpus);
        break;
      case OpKind::kMakeStream:
        op.b = ContextNumber();
        op.a = next_stream_ < kMaxStreams ? next_stream_++ : 3;
        break;
      case OpKind::kEndStream:
        op.a = OneOf(kMaxStreams, [&](int i) { return world_.streams[i].live; });
        break;
      case OpKind::kMakeBlock:
        op.a = next_block_ < kMaxBlocks - 1 ? next_block_++ : 0;
        op.b = random_.OneIn(3) ? kAllocated : random_.Below(kBlockKinds);
        if (has_peer_ && random_.OneIn(3)) op.b = random_.OneIn(2) ? kFromPool : kMapped;
        op.c = OneOf(kMaxPools, [&](int i) { return world_.pools[i] >= 0; });
        break;
      case OpKind::kHostBlock:
        op.a = next_block_ < kMaxBlocks - 1 ? next_block_++ : 0;
        op.b = ContextNumber();
        break;
      case OpKind::kEndBlock:
        op.a = OneOf(kMaxBlocks, [&](int i) { return world_.blocks[i].live; });
        break;
      case OpKind::kMakePool:
        op.a = next_pool_ < kMaxPools ? next_pool_++ : 0;
        break;
      case OpKind::kEndPool:
        op.a = OneOf(kMaxPools, [&](int i) { return world_.pools[i] >= 0; });
        if (op.a < 0) op.a = 0;
        break;
      case OpKind::kHostFill:
        op.a = Block(true);
        break;
      case OpKind::kMix:
        op.a = Block(false);
        op.b = Defined();
        op.c = Defined();
        break;
      case OpKind::kUpdate:
        op.a = Defined();
        break;
      case OpKind::kChase:
        op.a = Defined();
        op.b = Block(false);
        break;
      case OpKind::kFill:
        op.a = Block(false);
        break;
      case OpKind::kCopy:
      case OpKind::kCopy2D:
        op.a = Block(false);
        op.b = Defined();
        break;
      case OpKind::kImageCopy:
        op.a = OneOf(kMaxBlocks, [&](int i) { return world_.blocks[i].live && world_.blocks[i].kind == kInArray; });
        op.b = Block(false);
        break;
      case OpKind::kSample:
        op.a = Defined();
        if (world_.target().forms >= 2 && random_.OneIn(3)) {
          op.a = OneOf(kMaxBlocks, [&](int i) {
            return world_.blocks[i].live && world_.blocks[i].kind == kPitchedRows && world_.blocks[i].defined;
          });
        }
        op.b = Block(false);
        break;
      case OpKind::kStore:
        op.a = OneOf(kMaxBlocks, [&](int i) { return world_.blocks[i].live && world_.blocks[i].kind == kInArray; });
        op.b = Defined();
        break;
      case OpKind::kUnpack:
        op.a = next_block_ < kMaxBlocks - 3 ? next_block_++ : 0;
        op.b = next_block_ < kMaxBlocks - 2 ? next_block_++ : 0;
        op.c = next_pool_ < kMaxPools ? next_pool_++ : 0;
        break;
      case OpKind::kBarred:
        op.a = OneOf(kMaxContexts, [&](int i) { return world_.contexts[i].live; });
        break;
      case OpKind::kPast:
        op.b = Block(false);
        break;
      case OpKind::kShare:
        op.a = Shareable();
        if (random_.OneIn(3) && next_block_ < kMaxBlocks - 2 && next_pool_ < kMaxPools) {
          op.b = next_block_++;
          op.c = next_pool_++;
        }
        break;
      case OpKind::kImport:
        op.a = next_block_ < kMaxBlocks - 1 ? next_block_++ : 0;
        op.b = ContextNumber();
        break;
      case OpKind::kSlices:
        op.a = Defined();
        op.b = Defined();
        break;
      case OpKind::kValue:
        op.a = Defined();
        break;
      case OpKind::kToDevice:
      case OpKind::kToHost:
        op.a = op.kind == OpKind::kToHost ? Defined() : Block(false);
        op.b = Block(true);
        break;
      case OpKind::kPrefetch:
      case OpKind::kAdvise:
      case OpKind::kDiscard:
      case OpKind::kAttach:
        op.a = ManagedBlock();
        break;
      case OpKind::kRemap:
        op.a = OneOf(kMaxBlocks, [&](int i) { return world_.blocks[i].live && world_.blocks[i].kind == kMapped; });
        break;
      case OpKind::kBeginCapture:
        op.a = next_graph_ < kMaxGraphs ? next_graph_++ : 0;
        op.b = OneOf(kMaxStreams, [&](int i) { return world_.streams[i].live; });
        if (world_.target().appends) op.c = LiveGraph();
        break;
      case OpKind::kEndCapture:
        op.a = OneOf(kMaxGraphs, [&](int i) { return world_.captures[i].open; });
        if (op.a < 0) op.a = 0;
        break;
      case OpKind::kBuildGraph:
        op.a = next_graph_ < kMaxGraphs ? next_graph_++ : 0;
        op.b = Defined();
        op.c = Block(false);
        op.stream = -1 - ContextNumber();
        break;
      case OpKind::kScratch:
        op.a = next_block_ < kMaxBlocks - 1 ? next_block_++ : 0;
        op.b = Defined();
        op.stream = OneOf(kMaxStreams, [&](int i) { return world_.streams[i].live && world_.streams[i].capture >= 0; });
        break;
      case OpKind::kBeside:
        op.a = next_block_;
        op.b = next_stream_;
        if (next_block_ + 13 < kMaxBlocks && next_stream_ + 3 < kMaxStreams) {
          next_block_ += 12;
          next_stream_ += 3;
        }
        break;
      case OpKind::kSetNode:
      case OpKind::kMakeExec:
      case OpKind::kLaunchExec:
      case OpKind::kEndGraph:
        op.a = LiveGraph();
        if (op.a < 0) op.a = 0;
        break;
      case OpKind::kSync:
        op.a = random_.OneIn(2) ? OneOf(kMaxStreams, [&](int i) { return world_.streams[i].live; }) : -1;
        op.b = ContextNumber();
        break;
      case OpKind::kAsk:
      case OpKind::kError:
        op.a = random_.OneIn(3) ? OneOf(kMaxStreams, [&](int i) { return world_.streams[i].live; }) : -1;
        op.b = Block(false);
        break;
      default:
        break;
    }
    return op;
  }

  Random random_;
  World world_;
  int weights_[std::size(kWeights)], more_[std::size(kMoreWeights)] = {}, latest_[std::size(kLatestWeights)] = {},
                                     peer_[std::size(kPeerWeights)] = {};
  int total_, threads_;
  bool has_peer_ = false;
  int next_context_ = 2, next_stream_ = 3, next_block_ = 0, next_pool_ = 0, next_graph_ = 0;
};

}  // namespace

std::vector<Op> Generate(uint64_t seed, int count, const Target& target) { return Generator(seed, target).Make(count); }

}  // namespace differential
