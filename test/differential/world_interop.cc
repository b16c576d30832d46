// VMM memory that is mapped anew, surfaces, decompression, marks of pools, calls that fail, and the error that ends a
// context.
#include <algorithm>

#include "world.h"

namespace differential {

// a: an array; b: memory that is stored into it through a surface.
bool World::Store(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (!target_.textures || stream < 0 || !Live(op.a) || !Live(op.b) || blocks[op.a].kind != kInArray) return false;
  if (streams[stream].capture >= 0 || blocks[op.b].host || blocks[op.b].kind == kGlobalOfModule) return false;
  const int context = streams[stream].context;
  if (contexts[blocks[op.a].context].family != contexts[context].family || !Reaches(context, op.b)) return false;
  if (!blocks[op.a].surface && target_.forms >= 6 && !Unsafe(ThreadFor(stream, op.thread))) return false;
  const int64_t bytes = std::min(blocks[op.a].bytes, blocks[op.b].bytes) / 4 * 4;
  const bool whole = bytes == blocks[op.a].bytes;
  const int thread = ThreadFor(stream, op.thread);
  if (!Begin(op, stream, {{op.a, true, whole}, {op.b, false, false}}, random)) return false;
  if (target_.forms >= 6) Use(thread, context);
  if (!blocks[op.a].surface) Emit(kSurface, thread, {op.a});
  blocks[op.a].surface = true;
  Emit(kStore, thread, {context, streams[stream].number, op.a, op.b, bytes, random.Below(1 << 20)});
  return true;
}

bool World::Remap(const Op& op, Random& random) {
  if (!Live(op.a) || blocks[op.a].kind != kMapped || !Unsafe(op.thread)) return false;
  // Contents that go elsewhere are copied under the hook, on the legacy stream.
  const Block& block = blocks[op.a];
  if (contexts[block.context].green || !LegacyFree(block.context) || !SyncFree(block.context)) return false;
  if (std::any_of(captures.begin(), captures.end(), [](const Capture& one) { return one.open; })) return false;
  if (!OrderBlock(-1, op.a, true, op.thread, random)) return false;
  Use(op.thread, block.context);
  const int device = contexts[block.context].device;
  if (target_.forms >= 2 && random.OneIn(3)) {
    Emit(kAlias, op.thread, {op.a, block.bytes, device});
  } else if (block.is_exportable && random.OneIn(2)) {
    Emit(kExport, op.thread, {op.a});
  } else {
    Emit(kRemap, op.thread, {op.a, block.bytes, device, random.Below(2)});
  }
  return true;
}

// a, b: numbers of new blocks; c: of a new pool, where the device has none for decompression. b is decompressed into a.
bool World::Unpack(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (!target_.discard || stream < 0 || streams[stream].capture >= 0 || !Unsafe(op.thread)) return false;
  const int device = contexts[streams[stream].context].device;
  int pool = 0;
  while (pool < kMaxPools && !(unpacks_[pool] && pools[pool] == device)) ++pool;
  if (pool == kMaxPools) {
    if (pools[op.c] >= 0) return false;
    pool = op.c;
    pools[pool] = device;
    unpacks_[pool] = true;
    Emit(kMakeUnpackPool, op.thread, {pool, device});
  }
  for (const int block : {op.a, op.b}) {
    if (!Do({OpKind::kMakeBlock, op.thread, block, kFromPool, pool, stream, random.Next()}) ||
        !Do({OpKind::kFill, op.thread, block, -1, -1, stream, random.Next()}))
      return false;
  }
  const int64_t unpacked = (blocks[op.a].bytes - 4) / 8 * 8;
  const int64_t packed = std::min(unpacked / 2, blocks[op.b].bytes);
  const int thread = ThreadFor(stream, op.thread);
  if (!Begin(op, stream, {{op.a, true, false}, {op.b, false, false}}, random)) return false;
  Emit(kUnpack, thread, {op.a, op.b, packed, 2 * packed, streams[stream].number, random.Below(2)});
  return true;
}

// The bytes that a pool holds when no work of its device is left.
bool World::AskMarks(int pool, int thread) {
  for (int i = 0; i < kMaxContexts; ++i) {
    if (contexts[i].live && !contexts[i].green && contexts[i].device == pools[pool] && !SyncContext(i, thread))
      return false;
  }
  for (const Capture& one : captures) {
    if (one.open) return false;
  }
  Emit(kAskMarks, thread, {pool});
  return true;
}

// Calls that reach past a block, or free an address that cannot be freed. The driver refuses each, and nothing changes.
// Prefetches are not among them: an older simulated driver took managed blocks side by side for one range. An H100
// refuses them.
bool World::Past(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (stream < 0 || streams[stream].number < 3 || streams[stream].capture >= 0 || !Unsafe(op.thread)) return false;
  if (!Live(op.b) || blocks[op.b].host || !Reaches(streams[stream].context, op.b)) return false;
  const Block& block = blocks[op.b];
  const bool is_whole = block.kind == kAllocated || block.kind == kPitchedRows || block.kind == kManagedMemory ||
                        block.kind == kStreamOrdered || block.kind == kFromPool;
  if (!is_whole || block.bytes < 1024 || contexts[block.context].device != contexts[streams[stream].context].device)
    return false;
  Use(op.thread, streams[stream].context);
  const int64_t from = block.bytes / 2, past = block.bytes + 8192, number = streams[stream].number;
  switch (random.Below(4)) {
    case 0:
      Emit(kFillPast, op.thread, {op.b, from, past, number});
      return true;
    case 1:
      Emit(kCopyPast, op.thread, {op.b, from, op.b, past, number});
      return true;
    case 2:
      if (!target_.discard) return false;
      Emit(kBatchPast, op.thread, {op.b, from, op.b, 2 * past, number});
      return true;
    default:
      Emit(kFreeAsyncInterior, op.thread, {op.b, 512, number});
      return true;
  }
}

// a: the context. A call that a capture may forbid, with a capture of its own. Other captures are not open, which it
// would break, and no work waits for the host, since frees wait for it.
bool World::Barred(const Op& op, Random& random) {
  if (group_ != 0 || op.a < 0 || !contexts[op.a].live || contexts[op.a].green) return false;
  if (std::any_of(captures.begin(), captures.end(), [](const Capture& one) { return one.open; })) return false;
  Use(op.thread, op.a);
  const auto count = static_cast<int>(target_.discard ? BarredCall::kCalls : BarredCall::kDiscardHere);
  int call = random.Below(count);
  const int mode = random.Below(3);
  const bool elsewhere = random.OneIn(2), relaxed = random.OneIn(4);
  bool legacy = false;
  if (target_.forms >= 4) {
    legacy = random.OneIn(2);
    const auto all = static_cast<int>(BarredCall::kAllCalls), first = static_cast<int>(BarredCall::kCalls);
    if (random.OneIn(5)) call = first + random.Below(all - first);
  }
  Emit(kBarred, op.thread, {call, mode, elsewhere, relaxed, contexts[op.a].device, legacy});
  return true;
}

// A kernel that touches an illegal address ends every context: later calls answer its error.
bool World::FailAtLast(Random& random) {
  if (group_ != 0 || !Unsafe(0)) return false;
  const int context = random.Below(target_.gpus);
  const auto is_useful = [&](const Block& one) {
    return one.live && !one.host && one.kind == kAllocated && one.context == context && !one.word;
  };
  const auto found = std::find_if(blocks.begin(), blocks.end(), is_useful);
  if (found == blocks.end() || next_event_ >= kMaxEvents) return false;
  const auto block = static_cast<int>(found.index());
  Use(0, context);
  Emit(kMakeEvent, 0, {next_event_, CU_EVENT_DISABLE_TIMING});
  Emit(kFail, 0, {context, 0, block});
  Emit(kCallAll, 0, {0, block, next_event_++});
  return true;
}

}  // namespace differential
