// What each operation does, in steps of virtual time.
#include <algorithm>
#include <bit>
#include <cstring>

#include "misuse.h"
#include "simulator.h"

namespace simgpu {
namespace {

// Of their rate, what faults have left while they are recorded (fault_events.cu on an H200: 7.1 ms, 9.4 with records).
constexpr double kRecordedFaults = 0.75;

int64_t Nanoseconds(uint64_t bytes, double gbps) { return static_cast<int64_t>(static_cast<double>(bytes) / gbps) + 1; }

// The driver's density heuristic: a fault takes the largest aligned part of the block that would be more than half
// there.
uint32_t Densify(uint32_t there, uint32_t wanted, uint32_t available) {
  uint32_t all = there | wanted;
  for (int size = 2; size <= 32; size *= 2) {
    const uint32_t unit = size == 32 ? ~0u : (1u << size) - 1;
    for (int at = 0; at < 32; at += size) {
      const uint32_t part = unit << at;
      if ((wanted & part) != 0 && std::popcount(all & part) * 2 > size) all |= part & available;
    }
  }
  return all & ~there;
}

}  // namespace

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

int64_t Simulator::Transfer(int card, Server server, uint64_t bytes, double rate, int64_t t, bool faults,
                            bool requests) {
  if (bytes == 0) return t;
  Card& c = state_.card(card);
  LinkServer& mine = c.link[server];
  const int64_t start = std::max<int64_t>(t, mine.busy_until);
  const auto goes_in = [](int s) { return s == kManagedIn || s == kCopyIn || s == kRemoteIn; };
  const auto managed = [](int s) { return s == kManagedIn || s == kManagedOut; };
  const auto remote = [](int s) { return s == kRemoteIn || s == kRemoteOut; };
  const bool in = goes_in(server);
  double same_way = rate, both = rate;
  bool any_managed = managed(server), any_remote = remote(server), any_faults = faults, any_requests = requests,
       other_way = false;
  for (int i = 0; i < kServers; ++i) {
    if (i == server || c.link[i].busy_until <= start) continue;
    both += c.link[i].rate;
    if (goes_in(i) == in) {
      same_way += c.link[i].rate;
    } else {
      other_way = true;
    }
    any_managed = any_managed || managed(i);
    any_remote = any_remote || remote(i);
    any_faults = any_faults || c.link[i].faults;
    any_requests = any_requests || c.link[i].requests;
  }
  double stretch = std::max(1.0, same_way / std::max(profile_.copy_gbps, rate));
  // The low sum of managed transfers in both directions is the driver's own doing; what kernels read and write in place
  // shares the link alone with them.
  const double sum = any_requests                 ? profile_.requests_duplex_gbps
                     : any_faults                 ? profile_.fault_duplex_gbps
                     : any_managed && !any_remote ? profile_.managed_duplex_gbps
                                                  : profile_.copy_duplex_gbps;
  if (other_way) stretch = std::max(stretch, both / sum);
  const int64_t end = start + static_cast<int64_t>(static_cast<double>(bytes) / rate * stretch) + 1;
  mine.busy_until = end;
  mine.rate = rate;
  mine.faults = faults;
  mine.requests = requests;
  return end;
}

int64_t Simulator::AccessInPlace(int card, const Op& op, int64_t t) {
  const uint64_t in = op.remote_in, out = op.remote_out;
  if (in + out == 0) return t;
  SharedState::Lock lock(state_);
  const double ns = std::max(static_cast<double>(std::max(in, out)) / profile_.remote_one_way_gbps,
                             static_cast<double>(in + out) / profile_.remote_gbps);
  int64_t end = t;
  if (in != 0) end = std::max(end, Transfer(card, kRemoteIn, in, static_cast<double>(in) / ns, t));
  if (out != 0) end = std::max(end, Transfer(card, kRemoteOut, out, static_cast<double>(out) / ns, t));
  figures_[card].remote += in + out;
  timeline_.Span(card, "in place", "remote", t, end, in + out);
  return end;
}

// Writes to duplicates: the other copy is thrown away, page by page.
int64_t Simulator::Collapse(int card, const Op& op) {
  figures_[card].duplicate_write += op.duplicate_bytes;
  return static_cast<int64_t>(static_cast<double>(op.duplicate_bytes) * profile_.duplicate_write_ns_per_byte);
}

int64_t Simulator::TakeCompute(int card, int64_t t, int64_t duration) {
  Card& c = state_.card(card);
  int64_t free_at = c.compute_free.load(std::memory_order_relaxed);
  int64_t start;
  do {
    start = std::max(t, free_at);
  } while (!c.compute_free.compare_exchange_weak(free_at, start + duration, std::memory_order_relaxed));
  c.busy_ns.fetch_add(duration, std::memory_order_relaxed);
  return start;
}

uint64_t Simulator::FreeBytes(int card) const {
  const auto total = static_cast<uint64_t>(profile_.memory);
  // As the driver counts: managed pages do not show.
  const uint64_t used = state_.card(card).plain_used;
  return used >= total ? 0 : total - used;
}

bool Simulator::TakePlain(int card, uint64_t bytes) {
  SharedState::Lock lock(state_);
  const auto total = static_cast<uint64_t>(profile_.memory);
  if (bytes > total || state_.card(card).plain_used + bytes > total) return false;
  bool room = true;
  ThisThread().now = MakeRoom(card, bytes, ThisThread().now, &room);
  if (!room) return false;
  state_.card(card).plain_used += bytes;
  state_.self().plain[card] += bytes;
  return true;
}

void Simulator::GivePlain(int card, uint64_t bytes) {
  SharedState::Lock lock(state_);
  state_.card(card).plain_used -= bytes;
  state_.self().plain[card] -= bytes;
}

int64_t Simulator::MakeRoom(int card, uint64_t bytes, int64_t t, bool* room) {
  while (state_.Used(card) + bytes > static_cast<uint64_t>(profile_.memory)) {
    const int64_t out = memory_.EvictOldest(card);
    if (out < 0) {
      *room = false;
      return t;
    }
    const int64_t end = Transfer(card, kManagedOut, static_cast<uint64_t>(out), profile_.evict_gbps, t);
    figures_[card].evicted += static_cast<uint64_t>(out);
    timeline_.Span(card, "driver eviction", "evict", t, end, static_cast<uint64_t>(out));
    t = end;
  }
  *room = true;
  return t;
}

void Simulator::NotePeak(int card) {
  const uint64_t now = state_.self().managed[card];
  if (now > figures_[card].resident_peak) figures_[card].resident_peak = now;
}

int64_t Simulator::MoveIn(int card, const BlockPart& part, uint32_t mask, double rate, bool keep_host, int64_t t,
                          bool fault) {
  SharedState::Lock lock(state_);
  Block* b = part.block;
  memory_.Validate(b);
  const int from_card = b->chunk >= 0 && b->card != card ? b->card : -1;
  const uint32_t from_peer = from_card >= 0 ? b->resident : 0;
  const uint32_t from_host = mask & b->host & ~from_peer;
  const uint32_t fresh = mask & ~b->host & ~from_peer;
  const uint32_t backed = from_card >= 0 ? 0 : b->lazy | b->resident;
  bool room = true;
  t = MakeRoom(card, BytesOf((mask | from_peer) & ~backed, part.block_bytes), t, &room);
  if (!room) return -1;
  memory_.Validate(b);  // it may have been its own victim
  const uint64_t in = BytesOf(from_host, part.block_bytes);
  int64_t end = Transfer(card, kManagedIn, in, rate, t, fault);
  const double fresh_gbps = !fault                   ? profile_.populate_gbps
                            : (fresh & b->lazy) != 0 ? profile_.fault_discarded_gbps
                                                     : 25;
  if (fresh != 0) end += Nanoseconds(BytesOf(fresh, part.block_bytes), fresh_gbps);
  if (from_peer != 0) end += Nanoseconds(BytesOf(from_peer, part.block_bytes), profile_.peer_gbps);
  (fault ? figures_[card].fault_bytes : figures_[card].prefetch_in) += in;
  if (fault) uvm_tools_.Count(card, UvmTools::kCardFaults, static_cast<uint64_t>(std::popcount(mask)));
  uvm_tools_.Count(card, UvmTools::kToCard, in);
  if (in != 0) {
    timeline_.Span(card, fault ? "faults" : "prefetch in", fault ? "fault" : "prefetch", t, end, in);
  }
  if (!memory_.Place(b, part, card, mask, keep_host)) return -1;
  if (!fault) b->unused |= from_host;
  NotePeak(card);
  timeline_.Counter(card, "resident", end, state_.self().managed[card]);
  return end;
}

// A kernel that reads its operands several times reads them over the link as often: nothing keeps them.
void Simulator::NoteInPlace(Op* op, const Touch& touch, uint64_t bytes) const {
  const double passes = std::max<uint32_t>(1, touch.access >> 8) *
                        (op->kind_of_kernel == SIMGPU_CONVOLUTION ? profile_.filter_rereads : 1);
  if ((touch.access & 1) != 0) op->remote_in += static_cast<uint64_t>(static_cast<double>(bytes) * passes);
  if ((touch.access & 2) != 0) op->remote_out += bytes;
}

bool Simulator::FaultNext(Stream* s, Op* op, int64_t t, int64_t* end) {
  const int card = s->card;
  const auto bit = static_cast<uint16_t>(1u << card);
  for (; op->touch < op->touches.size(); ++op->touch, op->offset = 0) {
    const Touch& touch = op->touches[op->touch];
    while (op->offset < touch.length) {
      const uint64_t address = touch.address + op->offset;
      Allocation* a = memory_.Find(address);
      if (a == nullptr) break;  // said by CheckMapped
      const uint64_t stop = std::min(touch.address + touch.length, a->base + a->size);
      if (a->kind != MemoryKind::kManaged) {
        if (a->host_located) NoteInPlace(op, touch, stop - address);
        op->offset = stop - touch.address;
        continue;
      }
      const BlockPart part = memory_.PartAt(a, address, stop);
      Block* b = part.block;
      memory_.Validate(b);
      b->unused &= ~part.mask;
      const uint64_t next = part.address + part.block_bytes - touch.address;
      const uint32_t missing = b->card == card ? part.mask & ~b->resident : part.mask;
      const bool writes = (touch.access & 2) != 0;
      if (missing == 0) {
        if (writes && b->read_mostly && (b->host & part.mask) != 0) {
          const uint64_t bytes = BytesOf(b->host & part.mask, part.block_bytes);
          op->duplicate_bytes += bytes;
          SharedState::Lock lock(state_);
          b->host &= ~part.mask;
          memory_.UpdateChunk(b, part.block_bytes);
        }
        op->offset = next;
        continue;
      }
      // In place: a mapping was asked for, or the pages lie where they are preferred to lie and can be mapped. What
      // lies nowhere yet is made where it is preferred, else at the accessor.
      const uint32_t elsewhere = b->host | (b->card == card ? 0 : b->resident);
      const bool stays = b->preferred == kHostCard && !b->read_mostly;
      if (((b->accessed_by & bit) != 0 || stays) && ((missing & elsewhere) == missing || stays)) {
        b->host |= missing & ~elsewhere;
        const uint64_t until = std::min(stop, part.address + part.block_bytes);
        NoteInPlace(op, touch, std::min(until - address, BytesOf(missing, part.block_bytes)));
        op->offset = next;
        continue;
      }
      if (writes && (missing & b->discarded) != 0) TellWriteOfDiscarded(*s, *op, *a, part.address - a->base);
      const uint32_t all = MaskOf(0, part.block_bytes);
      const uint32_t there = b->card == card ? b->resident : 0;
      const uint32_t wanted = Densify(there, missing, all);
      const bool keep_host = b->read_mostly && !writes;
      const uint64_t in = BytesOf(wanted & b->host, part.block_bytes);
      double rate = profile_.FaultGbps(op->kind_of_kernel);
      if (uvm_tools_.Records(card)) {
        rate *= kRecordedFaults;
        for (uint64_t page = 0; page < 32; ++page) {
          if ((missing >> page & 1) != 0)
            uvm_tools_.RecordFault(card, std::max(address, part.address + page * kGranuleBytes));
        }
      }
      const int64_t done = MoveIn(card, part, wanted, rate, keep_host, t, true);
      if (done < 0) {
        // The card holds nothing that could leave: the access goes over the link.
        NoteInPlace(op, touch, BytesOf(missing, part.block_bytes));
        op->offset = next;
        continue;
      }
      if (b->read_mostly && writes) b->host &= ~wanted;
      op->fault_bytes += in;
      op->offset = next;
      *end = done;
      return true;
    }
  }
  return false;
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
    Misuse("promise of residency broken: " + Describe(*op, *s) + " faulted " + std::to_string(op->fault_bytes) +
           " bytes, and somebody promised that it would not");
  }
  const int64_t start = TakeCompute(s->card, t, op->duration);
  end = start + op->duration;
  end = std::max(end, AccessInPlace(s->card, *op, start)) + Collapse(s->card, *op);
  ++f.launches;
  f.kernel_ns += static_cast<uint64_t>(op->duration);
  f.stall_ns += static_cast<uint64_t>(t - op->began);
  if (timeline_.on()) {
    const std::string track = "stream " + std::to_string(s->id);
    if (t > op->began) timeline_.Span(s->card, track, "stall", op->began, t, op->fault_bytes);
    timeline_.Span(s->card, track, op->name == nullptr ? "kernel" : op->name, start, end, op->fault_bytes);
  }
  // Judged by the time it could start: that kernels take turns here is this card's simplification, not an order.
  uint64_t digest = op->seed;
  for (const Touch& touch : op->touches) {
    if ((touch.access & 1) != 0) {
      digest = NoteRead(s, *op, touch.address, touch.length, touch.object, t, end, digest);
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
  end = std::max(end, AccessInPlace(s->card, *op, t)) + Collapse(s->card, *op);
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
  end = std::max(start + length, AccessInPlace(s->card, *op, start)) + Collapse(s->card, *op);
  for (uint64_t row = 0; row < m.height; ++row) {
    Segment contents;
    contents.kind = Segment::kFill;
    contents.value = m.pattern;
    NoteWrite(s, *op, m.dst + row * m.pitch, m.width, 0, t, end, std::move(contents));
  }
  if (!polling_.empty()) RecheckPolls();
  return {State::kDone, end};
}

// Of the departures at the head of the stream and those behind it that have nothing else to wait for, so that several
// threads are busy with them: parts that one thread sends away at a time, up to the number of threads.
uint64_t Simulator::PartsToSend(const Stream& s, int64_t t) const {
  constexpr uint64_t kPart = uint64_t{8} << 20;
  uint64_t parts = 0;
  for (const Op* op : s.queue) {
    if (op->kind == OpKind::kWait && op->wait->done && op->wait->time + profile_.request_begin_ns <= t) continue;
    if (op->kind != OpKind::kPrefetch || op->senders == 0 || parts >= op->senders) break;
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
    // A host function hands the runs to the threads, whatever they still have to do.
    t = op->senders != 0 ? std::max(t, std::max(s->waited_for, op->enqueued) + profile_.request_begin_ns)
                         : t + profile_.prefetch_call_ns;
  }
  const bool batch = op->ranges.size() > 1 && op->senders == 0;
  double requests_gbps = 0;
  if (op->senders != 0) {
    const uint64_t parts = PartsToSend(*s, t);
    requests_gbps = std::min(profile_.requests_out_gbps,
                             profile_.request_out_gbps * static_cast<double>(std::min<uint64_t>(parts, op->senders)));
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
      double rate = op->senders != 0 ? requests_gbps : profile_.PrefetchRate(in, r.length);
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
      if (b->chunk < 0 || (out == 0 && (b->lazy & part.mask) == 0)) {
        t += profile_.prefetch_resident_block_ns;
        continue;
      }
      const int card = b->card;
      SharedState::Lock lock(state_);
      const uint64_t bytes = BytesOf(out & ~b->host, part.block_bytes);
      const bool requests = op->senders != 0;
      const int64_t end = Transfer(card, kManagedOut, bytes, rate, t, false, requests) +
                          (bytes == 0 ? profile_.read_mostly_card_ns_per_block : 0) +
                          (b->accessed_by != 0 && bytes != 0 && !requests ? profile_.advise_ns_per_block : 0);
      figures_[card].prefetch_out += bytes;
      uvm_tools_.Count(card, UvmTools::kToHost, bytes);
      CheckUnused(s, *op, part.address, part.block_bytes, t, false);
      if (b->read_mostly) {  // makes the host's copy; the card keeps its own
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
    if (!op->discard_too) return {State::kDone, end};
    return {State::kAgain, end};
  }
  return StepPrefetch(s, op, t);
}

Simulator::Result Simulator::StepWaitValue(Stream* s, Op* op, int64_t t) {
  const ValueWork& v = op->value;
  uint64_t now = 0;
  const uint64_t bytes = v.wide ? 8 : 4;
  if (!memory_.InArena(v.address) && v.address % bytes == 0) {  // another thread of the host may be writing it
    now = v.wide ? __atomic_load_n(reinterpret_cast<const uint64_t*>(v.address), __ATOMIC_ACQUIRE)
                 : __atomic_load_n(reinterpret_cast<const uint32_t*>(v.address), __ATOMIC_ACQUIRE);
  } else if (!ReadBytes(v.address, &now, bytes)) {
    return {State::kDone, t};
  }
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
  WriteBytes(op->value.address, &op->value.value, op->value.wide ? 8 : 4);
  if (!polling_.empty()) RecheckPolls();
}

}  // namespace simgpu
