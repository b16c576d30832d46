// Memory and events that another process shares.
#include <algorithm>

#include "world.h"

namespace differential {
namespace {

constexpr int64_t kMaxUnmanaged = 8 << 20;

}  // namespace

bool World::IsShareable(int block) const {
  if (!Live(block)) return false;
  const Block& one = blocks[block];
  if (one.host || !one.defined || one.table || one.word || contexts[one.context].green) return false;
  return one.kind == kAllocated || (one.kind == kMapped && one.is_exportable) ||
         (one.kind == kFromPool && shares_[one.pool]);
}

// a: a block that the other process reads; b and c, if any: the numbers of a new block and of its pool, which it reads
// instead. Or it waits for an event of `stream`.
bool World::Share(const Op& op, Random& random) {
  if (!target_.peers || group_ != 0 || !Unsafe(op.thread)) return false;
  if (std::any_of(captures.begin(), captures.end(), [](const Capture& one) { return one.open; })) return false;
  if (op.b >= 0) return SharePooled(op, random);
  if (random.OneIn(4)) {
    const int stream = StreamOf(op, random);
    if (stream < 0 || contexts[streams[stream].context].green) return false;
    const int thread = ThreadFor(stream, op.thread);
    Use(thread, streams[stream].context);
    Emit(kShareEvent, thread, {streams[stream].number});
    host_.Join(lines_[streams[stream].line].clock);
    return true;
  }
  if (!IsShareable(op.a)) return false;
  const Block block = blocks[op.a];
  if (!OrderBlock(-1, op.a, true, op.thread, random)) return false;
  Use(op.thread, block.context);
  const int device = contexts[block.context].device;
  if (block.kind == kFromPool) {
    Emit(kSharePooled, op.thread, {op.a, block.bytes, device, block.pool});
  } else {
    Emit(block.kind == kMapped ? kShareMapped : kShareBlock, op.thread, {op.a, block.bytes, device});
  }
  return true;
}

bool World::SharePooled(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (stream < 0 || contexts[streams[stream].context].green || streams[stream].capture >= 0 || pools[op.c] >= 0)
    return false;
  pools[op.c] = contexts[streams[stream].context].device;
  shares_[op.c] = true;
  Emit(kMakeSharedPool, op.thread, {op.c, pools[op.c]});
  if (!Do({OpKind::kMakeBlock, op.thread, op.b, kFromPool, op.c, stream, random.Next()}) ||
      !Do({OpKind::kFill, op.thread, op.b, -1, -1, stream, random.Next()}) || !IsShareable(op.b))
    return false;
  if (!OrderBlock(-1, op.b, true, op.thread, random)) return false;
  Use(op.thread, blocks[op.b].context);
  Emit(kSharePooled, op.thread, {op.b, blocks[op.b].bytes, pools[op.c], op.c});
  return true;
}

// a: the number of a new block, b: its context.
bool World::Import(const Op& op, Random& random) {
  if (!target_.peers || group_ != 0 || !Unsafe(op.thread) || blocks[op.a].bytes != 0) return false;
  if (op.b < 0 || !contexts[op.b].live || contexts[op.b].green) return false;
  if (std::any_of(captures.begin(), captures.end(), [](const Capture& one) { return one.open; })) return false;
  Block block;
  // One context of a GPU alone may open handles of another process (cuIpcOpenMemHandle's documentation).
  block.kind = random.OneIn(2) || op.b >= target_.gpus ? kMapped : kOpened;
  block.context = op.b;
  block.bytes = block.kind == kMapped ? int64_t{2} << 20 : 4096 << random.Below(10);
  if (unmanaged_bytes + block.bytes > kMaxUnmanaged || live_bytes + block.bytes > target_.live_bytes) return false;
  block.live = block.defined = true;
  unmanaged_bytes += block.bytes;
  live_bytes += block.bytes;
  Use(op.thread, op.b);
  Emit(block.kind == kMapped ? kImportMapped : kOpenBlock, op.thread,
       {op.a, block.bytes, contexts[op.b].device, op.a + 1});
  blocks[op.a] = block;
  return true;
}

}  // namespace differential
