// Objects and their ends: contexts, streams, blocks, pools, modules, threads; and questions about them.
#include <algorithm>

#include "world.h"

namespace differential {

bool World::DoObjects(const Op& op) {
  Random random(op.r);
  switch (op.kind) {
    case OpKind::kMakeContext: {
      if (!Unsafe(op.thread) || contexts[op.a].live) return false;
      const int device = random.Below(target_.gpus);
      contexts[op.a] = {true, false, false, device, op.a};
      Emit(kMakeContext, op.thread, {op.a, device});
      current_[op.thread] = -1;  // it was pushed: set again at the next use
      Use(op.thread, op.a);
      Emit(kLoad, op.thread, {op.a});
      return true;
    }
    case OpKind::kMakeGreenContext: {
      if (!target_.green_contexts || !Unsafe(op.thread) || contexts[op.a].live) return false;
      const int device = random.Below(target_.gpus);
      contexts[op.a] = {true, false, true, device, device};
      Emit(kMakeGreen, op.thread, {op.a, device});
      Use(op.thread, op.a);
      Emit(kLoad, op.thread, {op.a});
      return true;
    }
    case OpKind::kEndContext:
      return EndContext(op, random);
    case OpKind::kResetPrimary: {
      const int device = op.a;
      if (!std::none_of(captures.begin(), captures.end(), [](const Capture& one) { return one.open; })) return false;
      for (const Context& one : contexts) {
        if (one.live && one.green && one.device == device) return false;
      }
      for (const Block& one : blocks) {
        if (one.live && one.context == device && (one.kind == kStreamOrdered || one.kind == kFromPool || one.host))
          return false;
        if (one.live && one.context == device && (one.kind == kMapped || one.kind == kOpened)) return false;
      }
      if (!SyncContext(device, op.thread)) return false;
      // Work of other contexts' streams may still use its memory.
      for (int i = 0; i < kMaxBlocks; ++i) {
        if (blocks[i].live && blocks[i].context == device && !OrderBlock(-1, i, true, op.thread, random)) return false;
      }
      EndLines(device);
      Emit(kRelease, op.thread, {device});
      Emit(kRetain, op.thread, {device, device});
      std::fill(current_, current_ + kMaxThreads, -1);
      Use(op.thread, device);
      Emit(kLoad, op.thread, {device});
      return true;
    }
    case OpKind::kRetainRelease:
      if (!Unsafe(op.thread)) return false;
      Emit(kRetain, op.thread, {op.a, op.a});
      Emit(kRelease, op.thread, {op.a});
      return true;
    case OpKind::kMakeStream: {
      if (op.b < 0 || !contexts[op.b].live || streams[op.a].number >= 0 || !Unsafe(op.thread)) return false;
      const bool blocking = !contexts[op.b].green && random.OneIn(2);
      streams[op.a] = {true, blocking, op.a, op.b, NewLine(op.a, op.b), -1, -1};
      if (contexts[op.b].green) {
        Emit(kGreenStream, op.thread, {op.a, op.b});
        return true;
      }
      Use(op.thread, op.b);
      Emit(kMakeStream, op.thread,
           {op.a, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING, random.OneIn(3) ? -1 : 0});
      return true;
    }
    case OpKind::kEndStream: {
      if (!LiveStream(op.a) || streams[op.a].capture >= 0 || streams[op.a].number < 3) return false;
      Stream& stream = streams[op.a];
      if (contexts[stream.context].green) {
        if (!Unsafe(op.thread)) return false;
        Emit(kSyncStream, op.thread, {op.a});
        host_.Join(lines_[stream.line].clock);
      }
      Emit(kDestroyStream, op.thread, {op.a});
      stream.live = false;
      return true;
    }
    case OpKind::kMakeBlock:
      return MakeBlock(op, random);
    case OpKind::kEndBlock:
      return EndBlock(op, random);
    case OpKind::kMakePool:
      if (pools[op.a] >= 0 || !Unsafe(op.thread)) return false;
      pools[op.a] = random.Below(target_.gpus);
      shares_[op.a] = target_.peers && random.OneIn(2);
      if (shares_[op.a]) {
        unpacks_[op.a] = false;
        Emit(kMakeSharedPool, op.thread, {op.a, pools[op.a]});
        return true;
      }
      unpacks_[op.a] = target_.forms >= 2 && target_.discard && random.OneIn(2);
      if (unpacks_[op.a]) {
        Emit(kMakeUnpackPool, op.thread, {op.a, pools[op.a]});
        return true;
      }
      if (target_.forms >= 2 && target_.discard && random.OneIn(2)) {
        Emit(kMakeManagedPool, op.thread, {op.a, pools[op.a]});
        return true;
      }
      Emit(kMakePool, op.thread, {op.a, pools[op.a]});
      return true;
    case OpKind::kEndPool:
      if (pools[op.a] < 0 || !Unsafe(op.thread)) return false;
      if (random.OneIn(3)) {
        if (target_.forms >= 2 && random.OneIn(2)) return AskMarks(op.a, op.thread);
        Emit(kAskPool, op.thread, {op.a});
        return true;
      }
      if (random.OneIn(2)) {
        Emit(kTrimPool, op.thread, {op.a, 0});
        return true;
      }
      for (const Block& one : blocks) {
        if (one.live && one.pool == op.a) return false;
      }
      pools[op.a] = -1;
      Emit(kDestroyPool, op.thread, {op.a});
      return true;
    case OpKind::kHostBlock: {
      if (!Unsafe(op.thread) || blocks[op.a].bytes != 0) return false;
      Block& block = blocks[op.a];
      block.live = block.host = true;
      block.bytes = 256 << random.Below(12);
      block.context = std::max(0, op.b);
      if (!contexts[block.context].live || contexts[block.context].green) return false;
      block.registered = random.OneIn(3);
      Use(op.thread, block.context);
      if (block.registered) {
        Emit(kRegister, op.thread, {op.a, block.bytes});
      } else {
        Emit(kHostAlloc, op.thread, {op.a, block.bytes, CU_MEMHOSTALLOC_PORTABLE});
      }
      Emit(kFillHost, op.thread, {op.a, block.bytes, random.Below(1000)});
      block.defined = true;
      return true;
    }
    case OpKind::kReloadModule: {
      const int context = op.a;
      if (!contexts[context].live || !Unsafe(op.thread) || !SyncFree(context)) return false;
      for (const Graph& one : graphs) {
        if (one.live && contexts[one.context].family == contexts[context].family) return false;
      }
      if (!SyncContext(context, op.thread)) return false;
      for (int i = 0; i < kMaxBlocks; ++i) {
        if (blocks[i].live && blocks[i].kind == kGlobalOfModule && blocks[i].context == context) {
          Random same(1);
          if (!OrderBlock(-1, i, true, op.thread, same)) return false;
          blocks[i].live = false;
        }
      }
      Use(op.thread, context);
      Emit(kUnload, op.thread, {context});
      Emit(kLoad, op.thread, {context});
      return true;
    }
    case OpKind::kEndThread:
      if (op.thread == 0) return false;
      for (const Capture& one : captures) {
        if (one.open && one.thread == op.thread) return false;
      }
      Emit(kEndThread, 0, {op.thread});
      current_[op.thread] = -1;
      streams.ChangeIf([&](const Stream& one) { return one.live && one.thread == op.thread; },
                       [](Stream& one) { one.live = false; });
      return true;
    case OpKind::kBeside:
      return Beside(op, random);
    case OpKind::kSync:
      if (LiveStream(op.a)) {
        const int thread = ThreadFor(op.a, op.thread);
        if (streams[op.a].capture >= 0 || !Unsafe(thread)) return false;
        Emit(random.OneIn(2) ? kSyncStream : kPollStream, thread, {streams[op.a].number});
        host_.Join(lines_[streams[op.a].line].clock);
        return true;
      }
      return op.b >= 0 && contexts[op.b].live && SyncContext(op.b, op.thread);
    case OpKind::kCheck:
      return Check(op.thread);
    case OpKind::kAsk:
      return Ask(op, random);
    case OpKind::kError:
      return Error(op, random);
    default:
      return false;
  }
}

void World::EndLines(int context) {
  streams.ChangeIf([&](const Stream& one) { return one.context == context; }, [](Stream& one) { one.live = false; });
  for (int i = 0; i < kMaxBlocks; ++i) {
    if (blocks.At(i).live && blocks.At(i).context == context) FreeBlock(i);
  }
  blocks.ChangeIf([&](const Block& one) { return one.live && one.texture && one.texture_family == context; },
                  [](Block& one) { one.texture = false; });
  graphs.ChangeIf([&](const Graph& one) { return one.live && one.context == context; },
                  [](Graph& one) { one = Graph{}; });
  events_[context].clear();
  gates_[context] = {};
}

bool World::EndContext(const Op& op, Random&) {
  const int context = op.a;
  if (!contexts[context].live || contexts[context].primary || !SyncFree(context)) return false;
  for (const Block& one : blocks) {
    if (one.live && one.context == context && (one.kind == kMapped || one.kind == kOpened || one.host)) return false;
  }
  if (contexts[context].green) {
    // Its streams end first, idle; memory belongs to the primary context and stays.
    if (!Unsafe(op.thread)) return false;
    const auto ends = [&](const Stream& one) { return one.live && one.context == context && one.number >= 3; };
    streams.ChangeIf(ends, [&](Stream& one) {
      Emit(kSyncStream, op.thread, {one.number});
      host_.Join(lines_[one.line].clock);
      Emit(kDestroyStream, op.thread, {one.number});
      one.live = false;
    });
    for (const Graph& one : graphs) {
      if (one.live && one.context == context) return false;
    }
    for (int i = 0; i < kMaxThreads; ++i) {
      if (current_[i] == context) Use(i, 0);
    }
  } else if (!SyncContext(context, op.thread)) {
    return false;
  }
  // Work of other contexts' streams may still use its memory.
  Random same(2);
  for (int i = 0; i < kMaxBlocks; ++i) {
    if (blocks[i].live && blocks[i].context == context && !OrderBlock(-1, i, true, op.thread, same)) return false;
  }
  // Memory of pools is the device's, and stays.
  const auto stays = [&](const Block& one) {
    return one.live && one.context == context && (one.kind == kStreamOrdered || one.kind == kFromPool);
  };
  blocks.ChangeIf(stays, [&](Block& one) { one.context = contexts[context].device; });
  EndLines(context);
  if (contexts[context].green) {
    Emit(kEndGreen, op.thread, {context});
  } else {
    for (int i = 0; i < kMaxThreads; ++i) {
      if (current_[i] == context) Use(i, 0);
    }
    Emit(kDestroyContext, op.thread, {context});
  }
  contexts[context].live = false;
  return true;
}

bool World::Check(int thread) {
  for (const Capture& one : captures) {
    if (one.open) return false;
  }
  for (int i = 0; i < kMaxContexts; ++i) {
    if (contexts[i].live && !contexts[i].green && !SyncContext(i, thread)) return false;
  }
  Random same(3);
  for (int i = 0; i < kMaxBlocks; ++i) {
    if (blocks[i].live && blocks[i].defined && !OrderBlock(-1, i, true, thread, same)) return false;
  }
  for (int i = 0; i < kMaxBlocks; ++i) {
    const Block& block = blocks[i];
    if (!block.live || !block.defined || block.table) continue;
    if (!block.host) Use(thread, contexts[block.context].green ? contexts[block.context].family : block.context);
    if (block.kind == kInArray) {
      Emit(kCheckArray, thread, {i, block.pitch, block.rows});
      continue;
    }
    Emit(block.host ? kCheckHost : kCheckBlock, thread, {i, block.bytes});
  }
  Emit(kCheckBudget, thread, {});
  return true;
}

// Threads that allocate, compute and free at the same time, each with objects of its own.
bool World::Beside(const Op& op, Random& random) {
  // a, b: the first of the new blocks and streams; three threads use four blocks and a stream each
  for (int i = 0; i < 12; ++i) {
    if (op.a + i >= kMaxBlocks - 1 || blocks[op.a + i].bytes != 0) return false;
  }
  for (const Capture& one : captures) {
    if (one.open) return false;
  }
  if (op.b < 3 || op.b + 3 > kMaxStreams) return false;
  for (int i = 0; i < 3; ++i) {
    const int context = random.Below(target_.gpus);
    if (streams[op.b + i].number >= 0 || !Do({OpKind::kMakeStream, 1 + i, op.b + i, context, -1, -1, random.Next()}))
      return false;
    Use(1 + i, context);
  }
  group_ = ++groups_;
  for (int i = 0; i < 3; ++i) {
    const int thread = 1 + i, stream = op.b + i, first = op.a + 4 * i;
    group_line_ = streams[stream].line;
    for (int made = 0; made < 4; ++made) {
      const int kind = random.OneIn(2) ? kStreamOrdered : kAllocated;
      Apply({OpKind::kMakeBlock, thread, first + made, kind, -1, stream, random.Next()});
      Apply({OpKind::kFill, thread, first + made, -1, -1, stream, random.Next()});
      if (made > 0) Apply({OpKind::kMix, thread, first + made, first, first + made - 1, stream, random.Next()});
      if (made > 1 && random.OneIn(2))
        Apply({OpKind::kEndBlock, thread, first + made - 1, -1, -1, stream, random.Next()});
      Apply({OpKind::kUpdate, thread, first + made, -1, -1, stream, random.Next()});
    }
  }
  group_ = 0;
  return true;
}

bool World::Ask(const Op& op, Random& random) {
  if (LiveStream(op.a)) {
    if (streams[op.a].number < 3 || streams[op.a].capture >= 0 || contexts[streams[op.a].context].green) return false;
    Emit(kAskStream, op.thread, {op.a});
    return true;
  }
  if (!Live(op.b) || blocks[op.b].host) {
    if (!Unsafe(op.thread)) return false;
    Use(op.thread, random.Below(target_.gpus));
    Emit(kAskMemory, op.thread, {});
    return true;
  }
  const Block& block = blocks[op.b];
  Use(op.thread, block.context);
  const int64_t offset = random.Below(static_cast<int>(block.bytes));
  if (block.kind == kGlobalOfModule || block.kind == kMapped || block.kind == kInArray) return false;
  if (block.kind == kOpened) return false;
  if (random.OneIn(3)) {
    if (block.kind == kManagedMemory) {
      Emit(kAskManaged, op.thread, {op.b, block.bytes, target_.gpus});
    } else if (block.kind == kFromPool) {
      Emit(kAskPoolOf, op.thread, {op.b, offset, block.pool});
    } else if (block.kind != kStreamOrdered) {
      Emit(kAskNoPool, op.thread, {op.b, offset});
    }
  } else if (random.OneIn(2)) {
    Emit(kAskRange, op.thread, {op.b, offset, block.bytes});
  } else {
    Emit(kAskAttributes, op.thread, {op.b, offset});
  }
  return true;
}

bool World::Error(const Op& op, Random& random) {
  if (!Unsafe(op.thread)) return false;
  const int unused = kMaxBlocks - 1;
  Use(op.thread, random.Below(target_.gpus));
  switch (random.Below(3)) {
    case 0:
      Emit(kAllocNone, op.thread, {unused});
      return true;
    case 1:
      Emit(kAllocTooMuch, op.thread, {unused});
      return true;
    default:
      if (!Live(op.b) || blocks[op.b].host || blocks[op.b].kind != kAllocated || blocks[op.b].bytes < 1024)
        return false;
      Emit(kFreeInterior, op.thread, {op.b, 256});
      return true;
  }
}

void World::Finish(uint64_t r) {
  Random random(r);
  for (int i = 0; i < kMaxGraphs; ++i) {
    if (captures[i].open) Apply({OpKind::kEndCapture, captures[i].thread, i, -1, -1, -1, r});
  }
  Apply({OpKind::kCheck, 0, -1, -1, -1, -1, r});
  if (target_.forms >= 2 && random.OneIn(8) && FailAtLast(random)) return;
  if (random.OneIn(2)) return;  // the process ends with everything alive
  for (int i = 0; i < kMaxGraphs; ++i) Apply({OpKind::kEndGraph, 0, i, -1, -1, -1, 1});
  for (int i = 0; i < kMaxBlocks; ++i) Apply({OpKind::kEndBlock, 0, i, -1, -1, -1, random.Next()});
  for (int i = kMaxContexts - 1; i >= target_.gpus; --i) Apply({OpKind::kEndContext, 0, i, -1, -1, -1, 0});
  Apply({OpKind::kCheck, 0, -1, -1, -1, -1, r});
}

std::vector<Step> Lower(const std::vector<Op>& program, const Target& target) {
  World world(target);
  uint64_t r = 0;
  for (const Op& op : program) {
    world.Apply(op);
    r = r * 31 + op.r;
  }
  world.Finish(r);
  return {world.steps().begin(), world.steps().end()};
}

}  // namespace differential
