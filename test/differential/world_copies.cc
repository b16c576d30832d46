// Copies between device memory, and between it and the host.
#include <algorithm>

#include "world.h"

namespace differential {

// A copy runs in the context of its source. Between GPUs, without peer access, it has a part in the destination's, too
// (two H200s, driver 580).
void World::NoteCopied(int to, int from) {
  blocks[from].reads.back().awaited = true;
  const auto is_block = [&](int block) {
    const BlockKind kind = blocks[block].kind;
    return kind != kMapped && kind != kGlobalOfModule && kind != kFromPool && kind != kStreamOrdered &&
           kind != kOpened && !blocks[block].is_plain;
  };
  const bool is_apart = contexts[blocks[to].context].device != contexts[blocks[from].context].device;
  blocks[to].write.awaited = is_apart && is_block(from) && is_block(to) && blocks[to].kind != kManagedMemory;
}

bool World::Copy(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (stream < 0 || !Live(op.a) || !Live(op.b) || op.a == op.b || blocks[op.a].host || blocks[op.b].host) return false;
  const int thread = ThreadFor(stream, op.thread), number = streams[stream].number;
  const bool captures = streams[stream].capture >= 0;
  const Block &to = blocks[op.a], &from = blocks[op.b];
  if (to.kind == kInArray || from.kind == kInArray) return false;
  // Module globals and mapped memory are copied inside their own context.
  for (const int block : {op.a, op.b}) {
    const bool anywhere = blocks[block].kind != kMapped && blocks[block].kind != kGlobalOfModule &&
                          blocks[block].kind != kFromPool && blocks[block].kind != kStreamOrdered;
    if ((captures || !anywhere) && !Reaches(streams[stream].context, block)) return false;
  }
  if (op.kind == OpKind::kCopy2D) {
    if (to.pitch == 0 || from.pitch == 0) return false;
    const int64_t width = std::min(to.pitch, from.pitch) / (1 + random.Below(3)), rows = std::min(to.rows, from.rows);
    const bool now = number == 0 && !captures && random.OneIn(2);
    if (now && !Unsafe(thread)) return false;
    const bool whole = width == to.pitch && rows == to.rows;
    const int64_t to_pitch = to.pitch, from_pitch = from.pitch;
    if (!Begin(op, stream, {{op.a, true, whole}, {op.b, false, false}}, random)) return false;
    if (!captures) NoteCopied(op.a, op.b);
    Emit(now ? kCopy2DNow : kCopy2D, thread, {op.a, to_pitch, op.b, from_pitch, width, rows, number});
    return true;
  }
  const int64_t most = std::min(to.bytes, from.bytes);
  const bool whole = !to.defined || random.OneIn(2);
  if (whole && most != to.bytes && !to.defined) return false;
  const int64_t length = whole ? most : 1 + random.Below(static_cast<int>(most));
  const int64_t to_at = to.bytes == length ? 0 : random.Below(static_cast<int>(to.bytes - length));
  const int64_t from_at = from.bytes == length ? 0 : random.Below(static_cast<int>(from.bytes - length));
  const bool covers = length == to.bytes;
  const int to_context = to.context, from_context = from.context;
  int form = random.Below(captures ? 2 : 5);
  if (form == 2 && (number != 0 || !Unsafe(thread))) form = 0;
  if (form == 3 && (to_at != 0 || from_at != 0)) form = 0;
  if (form == 4 && (!target_.discard || number <= 2 || contexts[to_context].device != contexts[from_context].device))
    form = 0;
  if (!Begin(op, stream, {{op.a, true, covers}, {op.b, false, false}}, random)) return false;
  if (!captures) NoteCopied(op.a, op.b);
  switch (form) {
    case 1:
      Emit(kCopyAny, thread, {op.a, to_at, op.b, from_at, length, number});
      break;
    case 2:
      Emit(kCopyNow, thread, {op.a, to_at, op.b, from_at, length});
      break;
    case 3:
      Emit(kCopyPeer, thread, {op.a, to_context, op.b, from_context, length, number});
      break;
    case 4:
      Emit(kCopyBatch, thread, {op.a, to_at, op.b, from_at, length, number});
      break;
    default:
      Emit(kCopy, thread, {op.a, to_at, op.b, from_at, length, number});
      break;
  }
  return true;
}

bool World::HostCopy(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  const bool in = op.kind == OpKind::kToDevice;
  // a: device, b: host
  if (stream < 0 || !Live(op.a) || !Live(op.b) || blocks[op.a].host || !blocks[op.b].host) return false;
  if (!Reaches(streams[stream].context, op.a)) return false;
  const Block &device = blocks[op.a], &host = blocks[op.b];
  const int64_t most = std::min(device.bytes, host.bytes);
  if (in && !device.defined && most != device.bytes) return false;
  const int64_t length = !device.defined || random.OneIn(2) ? most : 1 + random.Below(static_cast<int>(most));
  const int64_t at = device.bytes == length ? 0 : random.Below(static_cast<int>(device.bytes - length));
  const int64_t host_at = host.bytes == length ? 0 : random.Below(static_cast<int>(host.bytes - length));
  const int thread = ThreadFor(stream, op.thread), number = streams[stream].number;
  const bool now = number == 0 && streams[stream].capture < 0 && random.OneIn(2);
  if (now && !Unsafe(thread)) return false;
  if (in) {
    if (!Begin(op, stream, {{op.a, true, length == device.bytes}, {op.b, false, false}}, random)) return false;
    if (now) {
      Emit(kToDeviceNow, thread, {op.a, at, op.b, host_at, length});
    } else {
      Emit(kToDevice, thread, {op.a, at, op.b, host_at, length, number});
    }
  } else {
    if (!Begin(op, stream, {{op.b, true, false}, {op.a, false, false}}, random)) return false;
    if (now) {
      Emit(kToHostNow, thread, {op.b, host_at, op.a, at, length});
    } else {
      Emit(kToHost, thread, {op.b, host_at, op.a, at, length, number});
    }
  }
  return true;
}

}  // namespace differential
