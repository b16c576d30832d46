// Traffic and residency: the time that transfers take on the link, demand faults, and evictions by a full GPU.
#include <algorithm>
#include <bit>
#include <string>

#include "simulator.h"

namespace simgpu {
namespace {

// Share of the fault rate that remains while faults are recorded (fault_events.cu on an H200: 7.1 ms, with
// records 9.4).
constexpr double kRecordedFaults = 0.75;

// The driver's density heuristic: a fault fetches the largest aligned part of the block of which more than half would
// then be resident.
uint32_t Densify(uint32_t resident, uint32_t wanted, uint32_t available) {
  uint32_t all = resident | wanted;
  for (int size = 2; size <= 32; size *= 2) {
    const uint32_t unit = size == 32 ? ~0u : (1u << size) - 1;
    for (int at = 0; at < 32; at += size) {
      const uint32_t part = unit << at;
      if ((wanted & part) != 0 && std::popcount(all & part) * 2 > size) all |= part & available;
    }
  }
  return all & ~resident;
}

}  // namespace

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
  // The low sum of managed transfers in both directions comes from the driver's work. Remote accesses of kernels share
  // only the link with them.
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

int64_t Simulator::AccessRemotely(int card, const Op& op, int64_t t) {
  const uint64_t in = op.remote_in, out = op.remote_out;
  if (in + out == 0) return t;
  SharedState::Lock lock(state_);
  const double ns = std::max(static_cast<double>(std::max(in, out)) / profile_.remote_one_way_gbps,
                             static_cast<double>(in + out) / profile_.remote_gbps);
  int64_t end = t;
  if (in != 0) end = std::max(end, Transfer(card, kRemoteIn, in, static_cast<double>(in) / ns, t));
  if (out != 0) end = std::max(end, Transfer(card, kRemoteOut, out, static_cast<double>(out) / ns, t));
  figures_[card].remote += in + out;
  timeline_.Span(card, "remote access", "remote", t, end, in + out);
  return end;
}

// A write to a duplicate drops the other copy, page by page.
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
  const uint64_t used = state_.card(card).unmanaged_used;
  return used >= total ? 0 : total - used;
}

bool Simulator::TakeUnmanaged(int card, uint64_t bytes) {
  SharedState::Lock lock(state_);
  const auto total = static_cast<uint64_t>(profile_.memory);
  if (bytes > total || state_.card(card).unmanaged_used + bytes > total) return false;
  bool room = true;
  ThisThread().now = MakeRoom(card, bytes, ThisThread().now, &room);
  if (!room) return false;
  state_.card(card).unmanaged_used += bytes;
  state_.self().unmanaged[card] += bytes;
  return true;
}

void Simulator::GiveUnmanaged(int card, uint64_t bytes) {
  SharedState::Lock lock(state_);
  state_.card(card).unmanaged_used -= bytes;
  state_.self().unmanaged[card] -= bytes;
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
  memory_.Validate(b);  // MakeRoom may have evicted this block
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
  if (fresh != 0 && !fault) timeline_.Span(card, "populate", "populate", t, end, BytesOf(fresh, part.block_bytes));
  if (in != 0) {
    timeline_.Span(card, fault ? "faults" : "prefetch in", fault ? "fault" : "prefetch", t, end, in);
  }
  if (!memory_.Place(b, part, card, mask, keep_host)) return -1;
  if (!fault) b->unused |= from_host;
  NotePeak(card);
  timeline_.Counter(card, "resident", end, state_.self().managed[card]);
  return end;
}

// A kernel that reads its operands several times reads them over the link as often, since nothing caches them.
void Simulator::NoteRemote(Op* op, const Touch& touch, uint64_t bytes) const {
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
      if (a == nullptr) break;  // reported by CheckMapped
      const uint64_t stop = std::min(touch.address + touch.length, a->base + a->size);
      if (a->kind != MemoryKind::kManaged) {
        if (a->host_located) NoteRemote(op, touch, stop - address);
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
      // Remote access: it was advised, or the pages are in their preferred location and can be mapped. A page without
      // contents is populated in its preferred location, or else at the accessor.
      const bool is_preferred_by_other = b->preferred >= 0 && b->preferred != card && b->card != card;
      if ((b->accessed_by & bit) != 0 && is_preferred_by_other) {
        const uint32_t fresh = missing & ~(b->host | b->resident);
        const double rate = profile_.FaultGbps(op->kind_of_kernel);
        if (writes && (fresh & b->discarded) != 0) ReportWriteOfDiscarded(*s, *op, *a, part.address - a->base);
        if (fresh != 0 && MoveIn(b->preferred, part, fresh, rate, false, t, true) < 0) {
          SharedState::Lock lock(state_);
          memory_.PopulateOnHost(b, part, fresh);
        }
      }
      const uint32_t elsewhere = b->host | (b->card == card ? 0 : b->resident);
      const bool stays = b->preferred == kHostCard && !b->read_mostly;
      if (((b->accessed_by & bit) != 0 || stays) && ((missing & elsewhere) == missing || stays)) {
        b->host |= missing & ~elsewhere;
        const uint64_t until = std::min(stop, part.address + part.block_bytes);
        NoteRemote(op, touch, std::min(until - address, BytesOf(missing, part.block_bytes)));
        op->offset = next;
        continue;
      }
      if (writes && (missing & b->discarded) != 0) ReportWriteOfDiscarded(*s, *op, *a, part.address - a->base);
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
        // Nothing on the GPU can be evicted: the access goes over the link.
        NoteRemote(op, touch, BytesOf(missing, part.block_bytes));
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

void Simulator::NoteDuplicateDropped(Allocation* a, const BlockPart& part, int64_t time) {
  const Block* b = part.block;
  const uint32_t both = b->resident & b->host;
  bool in_use = false;
  a->content->ForEach(part.address - a->base, part.address - a->base + part.block_bytes,
                      [&](const Segment& g) { in_use = in_use || g.use_until > time; });
  if (both == 0 || !in_use || b->preferred == b->card) return;
  const uint64_t bytes = BytesOf(both, part.block_bytes);
  figures_[b->card].evicted_in_use += bytes;
  TakeCompute(b->card, time, static_cast<int64_t>(static_cast<double>(bytes) / profile_.fault_gbps));
}

}  // namespace simgpu
