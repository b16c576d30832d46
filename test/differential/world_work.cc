// Memory and the work on it.
#include <algorithm>

#include "world.h"

namespace differential {
namespace {

constexpr int64_t kMaxMapped = 8 << 20;

int64_t SomeBytes(Random& random) {
  switch (random.Below(8)) {
    case 0:
    case 1:
      return 256 << random.Below(8);
    case 2:
    case 3:
    case 4:
      return (64 << 10) << random.Below(5);
    default:
      return (1 + random.Below(40)) * (int64_t{1} << 20) + (random.OneIn(3) ? 512 : 0);
  }
}

}  // namespace

bool World::MakeBlock(const Op& op, Random& random) {
  if (blocks[op.a].bytes != 0) return false;
  Block block;
  block.kind = static_cast<BlockKind>(op.b);
  block.bytes = SomeBytes(random);
  // Threads that each work on more than the whole budget drive the engine to its last resort: a launch without any
  // transfer, whose discarded chunks may be left to faults (hooklib/policy/fetch/discarded.cc).
  if (group_ > 0) block.bytes = std::min<int64_t>(block.bytes, 4 << 20);
  if (live_bytes + block.bytes > target_.live_bytes) return false;
  const bool ordered = block.kind == kStreamOrdered || block.kind == kFromPool;
  const int stream = StreamOf(op, random);
  if (stream < 0) return false;
  block.context = streams[stream].context;
  if (contexts[block.context].green && !ordered) return false;
  int thread = op.thread;
  if (ordered) {
    if (streams[stream].capture >= 0 || !Unsafe(op.thread) || !Unsafe(ThreadFor(stream, op.thread))) return false;
    if (streams[stream].number == 0 && !LegacyFree(block.context)) return false;
    if (block.kind == kFromPool && (op.c < 0 || pools[op.c] != contexts[block.context].device)) return false;
    if (block.kind == kFromPool && (unpacks_[op.c] || shares_[op.c])) {  // the driver's own, also under the hook
      block.is_plain = true;
      block.bytes = std::min<int64_t>(block.bytes, 2 << 20);
      if (unmanaged_bytes + block.bytes > kMaxMapped) return false;
      unmanaged_bytes += block.bytes;
    }
    if (contexts[block.context].green) block.context = contexts[block.context].family;
    thread = ThreadFor(stream, thread);
    Use(thread, streams[stream].context);
    if (block.kind == kFromPool) {
      block.pool = op.c;
      Emit(kPoolAlloc, thread, {op.a, block.bytes, streams[stream].number, op.c});
    } else {
      Emit(kAllocAsync, thread, {op.a, block.bytes, streams[stream].number});
    }
    block.write = Submit(stream, false);
  } else {
    if (!Unsafe(thread)) return false;
    Use(thread, block.context);
    switch (block.kind) {
      case kPitchedRows:
        block.rows = 1 + random.Below(64);
        block.pitch = int64_t{512} * (1 + random.Below(32));  // a multiple of the pitch alignment: rows are adjacent
        block.bytes = block.rows * block.pitch;
        Emit(kPitched, thread, {op.a, block.pitch, block.rows});
        break;
      case kManagedMemory:
        if (target_.forms >= 2 && LegacyFree(block.context) && SyncFree(block.context) && random.OneIn(3)) {
          // Of the host alone until it is attached to all.
          Emit(kManaged, thread, {op.a, block.bytes, CU_MEM_ATTACH_HOST});
          Emit(kAttach, thread, {0, op.a, CU_MEM_ATTACH_GLOBAL});
          Emit(kSyncStream, thread, {0});
          break;
        }
        Emit(kManaged, thread, {op.a, block.bytes, CU_MEM_ATTACH_GLOBAL});
        break;
      case kMapped:
        block.bytes = (1 + random.Below(3)) * (int64_t{2} << 20);
        if (unmanaged_bytes + block.bytes > kMaxMapped) return false;
        unmanaged_bytes += block.bytes;
        {
          const int form = random.Below(target_.forms >= 2 ? kMoreMapForms : kMapForms);
          block.is_exportable = (form & 16) != 0;
          Emit(kMap, thread, {op.a, block.bytes, contexts[block.context].device, form});
        }
        break;
      case kGlobalOfModule:
        for (const Block& other : blocks) {
          if (other.live && other.kind == kGlobalOfModule && other.context == block.context) return false;
        }
        block.bytes = static_cast<int64_t>(kGlobalBytes);
        Emit(kGlobal, thread, {op.a, block.context});
        break;
      case kInArray:
        block.rows = 1 + random.Below(256);
        block.pitch = int64_t{4} * (1 + random.Below(1024));
        block.bytes = block.rows * block.pitch;
        if (unmanaged_bytes + block.bytes > kMaxMapped) return false;
        unmanaged_bytes += block.bytes;
        Emit(kArray, thread, {op.a, block.pitch, block.rows});
        break;
      default:
        Emit(kAlloc, thread, {op.a, block.bytes});
        if ((block.bytes <= 4096 || random.OneIn(4)) && !contexts[block.context].green && LegacyFree(block.context) &&
            SyncFree(block.context) && ValueWord(block.context) < 0) {
          Emit(kFillNow, thread, {op.a, 0, 0, block.bytes});
          Emit(kSyncContext, thread, {});
          block.table = block.word = true;
        }
        break;
    }
  }
  block.live = true;
  live_bytes += block.bytes;
  blocks[op.a] = block;
  return true;
}

void World::FreeBlock(int block) {
  if (!blocks[block].host) live_bytes -= blocks[block].bytes;
  const BlockKind kind = blocks[block].kind;
  const bool is_plain = kind == kMapped || kind == kInArray || kind == kOpened || blocks[block].is_plain;
  if (is_plain) unmanaged_bytes -= blocks[block].bytes;
  blocks[block].live = false;
}

// Whether other threads' default streams, or green contexts, may hold work for which a free beside a capture does not
// wait: it did not in the hook, to which programs of older seeds keep.
bool World::HidesWork(int context, int thread) const {
  if (target_.forms >= 7) return false;
  if (target_.forms < 5) return true;
  return std::any_of(streams.begin(), streams.end(), [&](const Stream& one) {
    const bool is_part = one.line >= 0 && contexts[one.context].family == contexts[context].family;
    return is_part && (one.number == 0 || (one.number == 1 && one.thread != thread));
  });
}

bool World::EndBlock(const Op& op, Random& random) {
  if (!Live(op.a)) return false;
  const Block block = blocks[op.a];
  if (block.kind == kGlobalOfModule || block.word) return false;
  const bool ordered = block.kind == kStreamOrdered || block.kind == kFromPool;
  if (ordered && random.Below(4) != 0) {
    const int stream = StreamOf(op, random);
    if (stream < 0 || !Unsafe(op.thread) || !Unsafe(ThreadFor(stream, op.thread))) return false;
    if (streams[stream].capture >= 0 || contexts[streams[stream].context].device != contexts[block.context].device)
      return false;
    if (contexts[streams[stream].context].family != contexts[block.context].family) return false;
    if (streams[stream].number == 0 && !LegacyFree(streams[stream].context)) return false;
    const int thread = ThreadFor(stream, op.thread);
    if (!OrderBlock(stream, op.a, true, thread, random)) return false;
    Use(thread, streams[stream].context);
    Emit(kFreeAsync, thread, {op.a, streams[stream].number});
    Submit(stream, target_.waits);
    FreeBlock(op.a);
    return true;
  }
  if (!Unsafe(op.thread)) return false;
  // cuMemFree waits for the work that uses the memory; the other ways do not.
  const bool waits = !block.host && !ordered && block.kind != kMapped && block.kind != kOpened &&
                     block.kind != kInArray && !block.texture;
  if (!waits && !OrderBlock(-1, op.a, true, op.thread, random)) return false;
  // It waits for its own context's work: that of another context met freed memory (700, H100, driver 580, seed 88).
  std::vector<Stamp> uses = block.reads;
  uses.push_back(block.write);
  for (const Stamp& use : uses) {
    if (use.line < 0) continue;
    const int context = streams[lines_[use.line].stream].context;
    if (contexts[context].family == contexts[block.context].family) continue;
    if (target_.copies && waits && use.awaited) continue;
    if (!OrderHost(use, op.thread, random)) return false;
  }
  if (block.host) {
    Use(op.thread, block.context);
    Emit(block.registered ? kUnregister : kFreeHost, op.thread, {op.a});
  } else {
    // The address says whose memory it is: another context may be current.
    Use(op.thread, random.OneIn(4) ? random.Below(target_.gpus) : block.context);
    if (block.texture && target_.forms >= 6) Use(op.thread, block.texture_family);
    if (block.texture) Emit(kEndTexture, op.thread, {op.a});
    if (block.surface && target_.forms >= 6) Use(op.thread, block.context);
    if (block.surface) Emit(kEndSurface, op.thread, {op.a});
    if (block.kind == kInArray) {
      Emit(kEndArray, op.thread, {op.a});
    } else if (block.kind == kMapped) {
      Emit(kUnmap, op.thread, {op.a, block.bytes});
    } else if (block.kind == kOpened) {
      Use(op.thread, block.context);
      Emit(kCloseBlock, op.thread, {op.a});
    } else {
      Emit(kFree, op.thread, {op.a});
      const bool is_captured =
          std::any_of(captures.begin(), captures.end(), [](const Capture& one) { return one.open; });
      if (waits && target_.waits && !(is_captured && HidesWork(block.context, op.thread))) HostWaited(block.context);
      for (const Stamp& use : uses) {
        if (use.line < 0 || !use.awaited) continue;
        // Its own context's copies are work as all of its streams', of which some may be hidden beside a capture.
        const int context = streams[lines_[use.line].stream].context;
        const bool is_own = contexts[context].family == contexts[block.context].family;
        const bool is_hidden = is_own && is_captured && HidesWork(block.context, op.thread);
        const bool is_known = group_ == 0 || use.line == group_line_;
        if (target_.copies && waits && !is_hidden && is_known) host_.Add(use);
      }
      // Beside other threads, one of them may have got the address again.
      if (random.OneIn(8) && group_ == 0) Emit(kFreeAgain, op.thread, {op.a});
    }
  }
  FreeBlock(op.a);
  return true;
}

bool World::DoWork(const Op& op) {
  Random random(op.r);
  if (op.kind == OpKind::kRemap) return Remap(op, random);
  if (op.kind == OpKind::kImageCopy) return ImageCopy(op, random);
  if (op.kind == OpKind::kSample) return Sample(op, random);
  if (op.kind == OpKind::kSlices) return Slices(op, random);
  if (op.kind == OpKind::kValue) return Value(op, random);
  if (op.kind == OpKind::kStore) return Store(op, random);
  if (op.kind == OpKind::kUnpack) return Unpack(op, random);
  if (op.kind == OpKind::kPast) return Past(op, random);
  if (op.kind == OpKind::kBarred) return Barred(op, random);
  if (op.kind == OpKind::kShare) return Share(op, random);
  if (op.kind == OpKind::kImport) return Import(op, random);
  if (op.kind == OpKind::kHostFill) {
    if (!Live(op.a) || !blocks[op.a].host || !OrderBlock(-1, op.a, true, op.thread, random)) return false;
    Emit(kFillHost, op.thread, {op.a, blocks[op.a].bytes, random.Below(1000)});
    return true;
  }
  if (op.kind == OpKind::kAdvise) {
    if (!Live(op.a) || blocks[op.a].kind != kManagedMemory || blocks[op.a].host || !Unsafe(op.thread)) return false;
    const int advice = CU_MEM_ADVISE_SET_READ_MOSTLY + random.Below(6);
    Use(op.thread, blocks[op.a].context);
    // Read-mostly advice knows no location; accessed-by and preferred location know the host, too.
    Emit(
        kAdvise, op.thread,
        {op.a, blocks[op.a].bytes, advice, random.OneIn(3) && advice > 2 ? -1 : contexts[blocks[op.a].context].device});
    return true;
  }
  const int stream = StreamOf(op, random);
  if (stream < 0) return false;
  const int thread = ThreadFor(stream, op.thread), context = streams[stream].context, number = streams[stream].number;
  const bool captures = streams[stream].capture >= 0;
  switch (op.kind) {
    case OpKind::kFill:
      return Fill(op, random);
    case OpKind::kMix: {
      if (!Live(op.a) || !Live(op.b) || !Live(op.c)) return false;
      for (const int block : {op.a, op.b, op.c}) {
        if (!Reaches(context, block)) return false;
      }
      int64_t bytes = std::min({blocks[op.a].bytes, blocks[op.b].bytes, blocks[op.c].bytes}) / 4 * 4;
      const bool whole = bytes == blocks[op.a].bytes;
      if (!Begin(op, stream,
                 {{op.a, true, whole && op.a != op.b && op.a != op.c}, {op.b, false, false}, {op.c, false, false}},
                 random))
        return false;
      Emit(kMix, thread,
           {context, number, captures ? random.Below(3) : random.Below(kForms), op.a, op.b, op.c, bytes,
            random.Below(1 << 20)});
      return true;
    }
    case OpKind::kUpdate: {
      if (!Live(op.a) || !Reaches(context, op.a)) return false;
      const int64_t words = blocks[op.a].bytes / 4;
      const int64_t from = random.OneIn(2) ? 0 : random.Below(static_cast<int>(words));
      const int64_t length = random.OneIn(2) ? words - from : 1 + random.Below(static_cast<int>(words - from));
      if (!Begin(op, stream, {{op.a, true, false}}, random)) return false;
      Emit(kUpdate, thread,
           {context, number, captures ? random.Below(3) : random.Below(kForms), op.a, from * 4, length * 4,
            random.Below(1 << 20)});
      return true;
    }
    case OpKind::kChase: {
      // A block that no argument names: its address is in another block, which holds nothing else.
      if (captures || contexts[context].green || !Live(op.a) || !Live(op.b) || op.a == op.b ||
          !Reaches(context, op.a) || !Reaches(context, op.b))
        return false;
      if (!Unsafe(thread) || !LegacyFree(context) || blocks[op.b].kind == kGlobalOfModule || blocks[op.b].word)
        return false;
      if (!blocks[op.b].table) {
        if (!OrderBlock(-1, op.b, true, thread, random)) return false;
        blocks[op.b].table = true;
      }
      if (!Live(blocks[op.b].target) || blocks[op.b].target != op.a) {
        if (!OrderBlock(-1, op.b, true, thread, random)) return false;
        blocks[op.b].target = op.a;
        Use(thread, context);
        Emit(kPutPointer, thread, {op.b, op.a});
        blocks[op.b].write = Submit(LegacyStream(context));
        if (!OrderHost(blocks[op.b].write, thread, random)) return false;
      }
      if (!OrderBlock(stream, op.b, false, thread, random)) return false;
      if (!Begin(op, stream, {{op.a, true, false}}, random)) return false;
      blocks[op.b].reads.push_back({streams[stream].line, lines_[streams[stream].line].last});
      Emit(kChase, thread, {context, number, op.b, blocks[op.a].bytes / 4 * 4, random.Below(1 << 20)});
      return true;
    }
    case OpKind::kCopy:
    case OpKind::kCopy2D:
      return Copy(op, random);
    case OpKind::kToDevice:
    case OpKind::kToHost:
      return HostCopy(op, random);
    case OpKind::kPrefetch: {
      if (captures || !Unsafe(thread) || !Live(op.a) || blocks[op.a].kind != kManagedMemory || blocks[op.a].host)
        return false;
      if (!OrderBlock(stream, op.a, true, thread, random)) return false;
      if (number == 0 && !LegacyFree(context)) return false;
      Use(thread, context);
      Emit(kPrefetch, thread, {op.a, 0, blocks[op.a].bytes, random.OneIn(3) ? -1 : random.Below(target_.gpus), number});
      blocks[op.a].reads.push_back(Submit(stream));
      return true;
    }
    case OpKind::kDiscard: {
      if (!target_.discard || captures || number < 3 || !Unsafe(thread) || !Live(op.a) ||
          blocks[op.a].kind != kManagedMemory || blocks[op.a].host)
        return false;
      if (number == 0 && !LegacyFree(context)) return false;
      if (!OrderBlock(stream, op.a, true, thread, random)) return false;
      // The driver discards whole blocks of 2 MiB; prefetched again before it is written (simgpu/README.md, "Misuse").
      Use(thread, context);
      Emit(kDiscard, thread, {op.a, blocks[op.a].bytes, number});
      Emit(kPrefetch, thread, {op.a, 0, blocks[op.a].bytes, contexts[context].device, number});
      blocks[op.a].write = Submit(stream);
      blocks[op.a].reads.clear();
      blocks[op.a].defined = false;
      blocks[op.a].target = -1;  // of a table: its pointer is gone
      return true;
    }
    case OpKind::kAttach: {
      if (captures || number < 3 || !Unsafe(thread) || !Live(op.a) || blocks[op.a].kind != kManagedMemory ||
          blocks[op.a].host)
        return false;
      is_attached_ = true;
      const bool is_ordered = OrderBlock(stream, op.a, true, thread, random);
      is_attached_ = false;
      if (!is_ordered) return false;
      Use(thread, context);
      Emit(kAttach, thread, {number, op.a, random.OneIn(2) ? CU_MEM_ATTACH_SINGLE : CU_MEM_ATTACH_GLOBAL});
      Emit(kAttach, thread, {number, op.a, CU_MEM_ATTACH_GLOBAL});
      // In another stream than the legacy one it is no part of the barrier (experiments/probes/questions_barriers.h).
      blocks[op.a].write = Submit(stream, false);
      return true;
    }
    default:
      return false;
  }
}

bool World::Fill(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (stream < 0 || !Live(op.a) || !Reaches(streams[stream].context, op.a)) return false;
  const int64_t bytes = blocks[op.a].bytes;
  const bool whole = !blocks[op.a].defined || random.OneIn(2);
  const int form = random.Below(blocks[op.a].pitch != 0 ? 4 : 3);
  const int64_t unit = form == 1 ? 2 : form == 2 ? 4 : 1;
  const int64_t from = whole ? 0 : random.Below(static_cast<int>(bytes / unit)) * unit;
  const int64_t length = whole ? bytes : (1 + random.Below(static_cast<int>((bytes - from) / unit))) * unit;
  const bool now = form == 0 && random.OneIn(4) && streams[stream].number == 0 && streams[stream].capture < 0;
  if (now && !Unsafe(op.thread)) return false;
  const int thread = ThreadFor(stream, op.thread), number = streams[stream].number;
  const bool covers = length == bytes && form != 3;
  if (!Begin(op, stream, {{op.a, true, covers}}, random)) return false;
  const int value = random.Below(1 << 16);
  if (now) {
    Emit(kFillNow, thread, {op.a, from, value & 255, length});
  } else if (form == 3) {
    Emit(kFill2D, thread,
         {op.a, 0, blocks[op.a].pitch, value & 255, blocks[op.a].pitch / 2, blocks[op.a].rows, number});
  } else {
    Emit(form == 0   ? kFill8
         : form == 1 ? kFill16
                     : kFill32,
         thread, {op.a, from, form == 0 ? value & 255 : value, length / unit, number});
  }
  return true;
}

}  // namespace differential
