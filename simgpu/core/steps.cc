// The steps of each operation in virtual time.
#include <algorithm>
#include <cstring>

#include "misuse.h"
#include "simulator.h"

namespace simgpu {

Simulator::Result Simulator::Step(Stream* s, Op* op, int64_t t) {
  switch (op->kind) {
    case OpKind::kKernel:
      return StepKernel(s, op, t);
    case OpKind::kCopy:
      return StepCopy(s, op, t);
    case OpKind::kMemset:
      return StepMemset(s, op, t);
    case OpKind::kPrefetch:
      return StepPrefetch(s, op, t);
    case OpKind::kDiscard:
      return StepDiscard(s, op, t);
    case OpKind::kFence:
      return {State::kDone, t};
    case OpKind::kWait:
      if (op->wait->done) {
        s->waited_for = std::max(s->waited_for, op->wait->time);
        return {State::kDone, std::max(t, op->wait->time)};
      }
      op->wait->waiters.push_back(s);
      return {State::kBlocked, 0};
    case OpKind::kHostFunc:
      StartCallback(s, op, t);
      return {State::kBlocked, 0};
    case OpKind::kWaitValue:
      return StepWaitValue(s, op, t);
    case OpKind::kWriteValue:
      StepWriteValue(s, op, t);
      return {State::kDone, t};
    case OpKind::kAction:
      op->action(op->action_a, op->action_b);
      return {State::kDone, t};
  }
  return {State::kDone, t};
}

Simulator::Result Simulator::StepKernel(Stream* s, Op* op, int64_t t) {
  if (!op->started) {
    op->started = true;
    op->began = t;
    if (!CheckMapped(s, *op)) return {State::kDone, t};
  }
  int64_t end;
  if (FaultNext(s, op, t, &end)) return {State::kAgain, end};
  CardFigures& f = figures_[s->card];
  if (op->must_be_resident && op->fault_bytes != 0) {
    Misuse("residency guarantee broken: " + Describe(*op, *s) + " faulted " + std::to_string(op->fault_bytes) +
           " bytes, although SIMGPU_MUST_BE_RESIDENT excludes faults");
  }
  const int64_t start = TakeCompute(s->card, t, op->duration);
  end = start + op->duration;
  end = std::max(end, AccessRemotely(s->card, *op, start)) + Collapse(s->card, *op);
  ++f.launches;
  f.kernel_ns += static_cast<uint64_t>(op->duration);
  f.stall_ns += static_cast<uint64_t>(t - op->began);
  if (timeline_.on()) {
    const std::string track = "stream " + std::to_string(s->id);
    if (t > op->began) timeline_.Span(s->card, track, "stall", op->began, t, op->fault_bytes);
    timeline_.Span(s->card, track, op->name == nullptr ? "kernel" : op->name, start, end, op->fault_bytes);
  }
  // The misuse detector takes the time at which the kernel could start. That kernels run one after the other is a
  // simplification of this GPU and no order of the program.
  uint64_t digest = op->seed;
  for (const Touch& touch : op->touches) {
    if ((touch.access & 1) != 0) {
      const uint64_t with = NoteRead(s, *op, touch.address, touch.length, touch.object, t, end, digest);
      if ((touch.access & kAddressOnly) == 0) digest = with;
    }
  }
  uint64_t output = 0;
  for (const Touch& touch : op->touches) {
    if ((touch.access & 2) == 0) continue;
    Segment contents;
    contents.kind = Segment::kStamp;
    contents.value = Mix(digest, ++output);
    NoteWrite(s, *op, touch.address, touch.length, touch.object, t, end, std::move(contents));
  }
  if (!polling_.empty()) RecheckPolls();
  return {State::kDone, end};
}

Simulator::Result Simulator::StepCopy(Stream* s, Op* op, int64_t t) {
  if (!op->started) {
    op->started = true;
    op->began = t;
    if (!CheckMapped(s, *op)) return {State::kDone, t};
  }
  int64_t end;
  if (FaultNext(s, op, t, &end)) return {State::kAgain, end};
  const CopyWork& c = op->copy;
  const uint64_t bytes = c.width * c.height * c.depth;
  Allocation* dst = memory_.Find(c.dst);
  Allocation* src = memory_.Find(c.src);
  t += profile_.copy_latency_ns;
  CardFigures& f = figures_[s->card];
  if (dst != nullptr && src != nullptr) {
    const bool peer = dst->kind != MemoryKind::kManaged && src->kind != MemoryKind::kManaged && dst->card != src->card;
    end = t + Nanoseconds(bytes, peer ? profile_.peer_gbps : profile_.device_copy_gbps);
  } else if (dst == nullptr && src == nullptr) {
    end = t + Nanoseconds(bytes, profile_.pageable_gbps);
  } else {
    const bool in = dst != nullptr;
    SharedState::Lock lock(state_);
    end = Transfer(s->card, in ? kCopyIn : kCopyOut, bytes, c.pinned ? profile_.copy_gbps : profile_.pageable_gbps, t);
    (in ? f.copy_in : f.copy_out) += bytes;
    timeline_.Span(s->card, in ? "copy in" : "copy out", "copy", t, end, bytes);
  }
  end = std::max(end, AccessRemotely(s->card, *op, t)) + Collapse(s->card, *op);
  CopyContents(s, op, t, end);
  if (!polling_.empty()) RecheckPolls();
  return {State::kDone, end};
}

Simulator::Result Simulator::StepMemset(Stream* s, Op* op, int64_t t) {
  if (!op->started) {
    op->started = true;
    op->began = t;
    if (!CheckMapped(s, *op)) return {State::kDone, t};
  }
  int64_t end;
  if (FaultNext(s, op, t, &end)) return {State::kAgain, end};
  const MemsetWork& m = op->set;
  const int64_t length = Nanoseconds(m.width * m.height, profile_.device_copy_gbps) + 1000;
  const int64_t start = TakeCompute(s->card, t, length);
  end = std::max(start + length, AccessRemotely(s->card, *op, start)) + Collapse(s->card, *op);
  for (uint64_t row = 0; row < m.height; ++row) {
    Segment contents;
    contents.kind = Segment::kFill;
    contents.value = m.pattern;
    NoteWrite(s, *op, m.dst + row * m.pitch, m.width, 0, t, end, std::move(contents));
  }
  if (!polling_.empty()) RecheckPolls();
  return {State::kDone, end};
}

// The number of parts that eviction threads can work on at once, up to the number of threads. It counts the eviction at
// the head of the stream and those behind it that wait for nothing else.
uint64_t Simulator::EvictionParts(const Stream& s, int64_t t) const {
  constexpr uint64_t kPart = uint64_t{8} << 20;
  uint64_t parts = 0;
  for (const Op* op : s.queue) {
    if (op->kind == OpKind::kWait && op->wait->done && op->wait->time + profile_.request_begin_ns <= t) continue;
    if (op->kind != OpKind::kPrefetch || op->eviction_threads == 0 || parts >= op->eviction_threads) break;
    for (const PrefetchRange& r : op->ranges) parts += (r.length + kPart - 1) / kPart;
  }
  return parts;
}

Simulator::Result Simulator::StepPrefetch(Stream* s, Op* op, int64_t t) {
  op->started = true;
  if (op->phase == 0) {
    op->phase = 1;
    op->began = t;
    if (!CheckMapped(s, *op)) return {State::kDone, t};
    NoteMoving(*op, true);
    // A host function hands the ranges to the threads, even if they still have other work.
    t = op->eviction_threads != 0 ? std::max(t, std::max(s->waited_for, op->enqueued) + profile_.request_begin_ns)
                                  : t + profile_.prefetch_call_ns;
  }
  const bool batch = op->ranges.size() > 1 && op->eviction_threads == 0;
  double requests_gbps = 0;
  if (op->eviction_threads != 0) {
    const uint64_t parts = EvictionParts(*s, t);
    requests_gbps =
        std::min(profile_.requests_out_gbps,
                 profile_.request_out_gbps * static_cast<double>(std::min<uint64_t>(parts, op->eviction_threads)));
  }
  for (; op->touch < op->ranges.size(); ++op->touch, op->offset = 0) {
    const PrefetchRange& r = op->ranges[op->touch];
    const bool in = r.target != kHostCard;
    while (op->offset < r.length) {
      const uint64_t address = r.address + op->offset;
      Allocation* a = memory_.Find(address);
      if (a == nullptr || a->kind != MemoryKind::kManaged) break;
      const BlockPart part = memory_.PartAt(a, address, std::min(r.address + r.length, a->base + a->size));
      Block* b = part.block;
      op->offset = part.address + part.block_bytes - r.address;
      memory_.Validate(b);
      double rate = op->eviction_threads != 0 ? requests_gbps : profile_.PrefetchRate(in, r.length);
      if (batch) {
        rate = std::min(rate * (in ? profile_.batch_in_gain : profile_.batch_out_gain),
                        in ? profile_.prefetch_in_4g_gbps : std::max(profile_.prefetch_out_gbps, rate));
      }
      if (in) {
        const uint32_t missing = b->card == r.target ? part.mask & ~b->resident : part.mask;
        if (missing == 0) {
          if (b->chunk >= 0) {
            SharedState::Lock lock(state_);
            memory_.Touch(b);
          }
          t += profile_.prefetch_resident_block_ns;
          continue;
        }
        const int64_t end = MoveIn(r.target, part, missing, rate, b->read_mostly, t, false);
        if (end >= 0) return {State::kAgain, end};
        continue;
      }
      const uint32_t out = part.mask & b->resident;
      // Pages that are nowhere, discarded ones among them, are populated in host memory, of zeros.
      const uint32_t fresh = part.mask & ~b->host & ~b->resident;
      if (fresh != 0) {
        SharedState::Lock lock(state_);
        t += Nanoseconds(BytesOf(fresh, part.block_bytes), profile_.populate_host_gbps);
        memory_.PopulateOnHost(b, part, fresh);
      }
      if (b->chunk < 0 || (out == 0 && (b->lazy & part.mask) == 0)) {
        t += profile_.prefetch_resident_block_ns;
        continue;
      }
      const int card = b->card;
      SharedState::Lock lock(state_);
      const uint64_t bytes = BytesOf(out & ~b->host, part.block_bytes);
      const bool requests = op->eviction_threads != 0;
      const int64_t end = Transfer(card, kManagedOut, bytes, rate, t, false, requests) +
                          (bytes == 0 ? profile_.read_mostly_card_ns_per_block : 0) +
                          (b->accessed_by != 0 && bytes != 0 && !requests ? profile_.advise_ns_per_block : 0);
      figures_[card].prefetch_out += bytes;
      uvm_tools_.Count(card, UvmTools::kToHost, bytes);
      CheckUnused(s, *op, part.address, part.block_bytes, t, false);
      if (b->read_mostly) {  // makes the host's copy and keeps the GPU's
        b->host |= out;
        memory_.UpdateChunk(b, part.block_bytes);
      } else {
        memory_.MoveToHost(b, part, part.mask);
      }
      if (bytes != 0) timeline_.Span(card, "prefetch out", "evict", t, end, bytes);
      timeline_.Counter(card, "resident", end, state_.self().managed[card]);
      return {State::kAgain, end};
    }
  }
  NoteMoving(*op, false);
  return {State::kDone, t};
}

Simulator::Result Simulator::StepDiscard(Stream* s, Op* op, int64_t t) {
  if (!op->started) {
    op->started = true;
    op->began = t;
    if (!CheckMapped(s, *op)) return {State::kDone, t};
    int64_t end = t;
    uint64_t dropped = 0;
    for (const PrefetchRange& r : op->ranges) {
      CheckUnused(s, *op, r.address, r.length, t, true);
      Segment gone;
      gone.kind = Segment::kDiscarded;
      NoteWrite(s, *op, r.address, r.length, 0, t, t, gone);
      for (uint64_t at = r.address; at < r.address + r.length;) {
        Allocation* a = memory_.Find(at);
        if (a == nullptr || a->kind != MemoryKind::kManaged) break;
        const BlockPart part = memory_.PartAt(a, at, std::min(r.address + r.length, a->base + a->size));
        SharedState::Lock lock(state_);
        memory_.Validate(part.block);
        const bool in_host = part.block->host != 0;
        dropped += BytesOf(part.block->resident & part.whole_mask, part.block_bytes);
        memory_.Discard(part.block, part, part.whole_mask);
        end += in_host ? profile_.discard_host_ns_per_block : profile_.discard_ns_per_block;
        at = part.address + part.block_bytes;
      }
    }
    figures_[s->card].discarded += dropped;
    timeline_.Span(s->card, "discard", "discard", t, end, dropped);
    if (!op->discard_too) return {State::kDone, end};
    return {State::kAgain, end};
  }
  return StepPrefetch(s, op, t);
}

Simulator::Result Simulator::StepWaitValue(Stream* s, Op* op, int64_t t) {
  const ValueWork& v = op->value;
  uint64_t now = 0;
  if (!ReadBytes(v.address, &now, v.wide ? 8 : 4)) return {State::kDone, t};
  bool there = false;
  switch (v.flags & 3) {
    case 0:
      there = v.wide ? static_cast<int64_t>(now - v.value) >= 0
                     : static_cast<int32_t>(static_cast<uint32_t>(now) - static_cast<uint32_t>(v.value)) >= 0;
      break;
    case 1:
      there = now == (v.wide ? v.value : static_cast<uint32_t>(v.value));
      break;
    case 2:
      there = (now & v.value) != 0;
      break;
    default:
      there = ~(now | v.value) != 0;
  }
  if (there) return {State::kDone, t};
  polling_.push_back(s);
  return {State::kBlocked, 0};
}

void Simulator::StepWriteValue(Stream* s, Op* op, int64_t t) {
  (void)s;
  (void)t;
  WriteWord(op->value.address, static_cast<uint32_t>(op->value.value));
  if (op->value.wide) WriteWord(op->value.address + 4, static_cast<uint32_t>(op->value.value >> 32));
  if (!polling_.empty()) RecheckPolls();
}

}  // namespace simgpu
