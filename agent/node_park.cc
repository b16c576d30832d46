// Node: parked allocations. A parked one has lent all of its guarantee but the memory that cannot leave the GPU. Its
// next launch needs a token, and the request for the token wakes it (docs/design/park.md).
#include <algorithm>
#include <cstdio>
#include <utility>

#include "agent/node_private.h"

namespace sluice::agent {
namespace {

std::string Seconds(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f s", static_cast<double>(ns) / 1e9);
  return text;
}

}  // namespace

bool Node::IsParked(const Allocation& a) { return a.park.state != Park::State::kAwake; }

bool Node::IsParkedByPage(const Session& s) { return s.page != nullptr && Load(s.page->parked) != 0; }

std::vector<Node::Session*> Node::Served(const Allocation& a) const {
  std::vector<Session*> out;
  for (const SessionId id : a.sessions) {
    Session* const s = sessions_.at(id).get();
    if (s->phase == Session::Phase::kServed) out.push_back(s);
  }
  return out;
}

bool Node::ParkNow(const std::string& id, const std::string& reason, uint64_t now_ns, std::string* error) {
  Allocation& a = *by_id_.at(id);
  const std::vector<Session*> served = Served(a);
  const auto old = std::ranges::find_if(served, [](const Session* s) { return s->minor < SLUICE_MINOR_PARK; });
  if (IsParked(a)) {
    *error = id + (a.park.state == Park::State::kParked ? " is parked already" : " is being parked already") + ": by " +
             a.park.reason;
  } else if (served.empty()) {
    *error = id + " has no attached process: it has nothing on a GPU";
  } else if (old != served.end()) {
    *error = id + ": pid " + std::to_string((*old)->pid) + " has hook " + (*old)->version +
             ", which cannot be parked: restart the container with a newer one";
  } else {
    BeginPark(a, reason, now_ns);
    return true;
  }
  return false;
}

bool Node::Wake(const std::string& id, uint64_t now_ns, std::string* error) {
  Allocation& a = *by_id_.at(id);
  if (!IsParked(a)) {
    *error = id + " is not parked";
    return false;
  }
  EndPark(a, "sluice wake", now_ns);
  return true;
}

void Node::SetParked(Allocation& a, bool parked) {
  for (const GpuUnits& g : a.spec.gpus) cards_.at(g.uuid)->ledger.SetParked(a.group, parked);
  for (Session* s : Served(a)) {
    s->parked.assign(a.spec.gpus.size(), {});
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
      // A client that wakes has work, and a parked one has none, whatever was seen of it before.
      if (!parked) s->demand[i].SetHeld(now_ns_);
      s->overdue_since_ns[i] = 0;
      MarkDue(s->id, i);
    }
  }
  ReadPages(now_ns_);  // the bytes that its processes want now
  dirty_ = true;
}

void Node::BeginPark(Allocation& a, const std::string& reason, uint64_t now_ns) {
  now_ns_ = now_ns;
  a.park.state = Park::State::kParking;
  a.park.reason = reason;
  a.park.since_ns = now_ns;
  a.park.delay_reported = false;
  a.park.resident = 0;
  ++a.park.parks;
  for (const Session* s : Served(a)) {
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) a.park.resident = Sum(a.park.resident, Read(*s, i).resident_bytes);
  }
  SetParked(a, true);
}

void Node::EndPark(Allocation& a, const std::string& woken_by, uint64_t now_ns) {
  now_ns_ = now_ns;
  const bool was_parked = a.park.state == Park::State::kParked;
  const uint64_t lasted = now_ns - a.park.since_ns;
  a.park.state = Park::State::kAwake;
  a.park.since_ns = now_ns;
  a.park.woken_by = woken_by;
  ++a.park.wakes;
  SetParked(a, false);
  AddFinding(a.spec.id, "woken",
             "by " + woken_by + (was_parked ? ", parked for " : ", before it was parked, after ") + Seconds(lasted));
}

// The first process that returns says whether the container is parked; one that worked meanwhile wakes it.
void Node::ResumePark(Session& s, uint64_t now_ns) {
  Allocation& a = *s.allocation;
  const bool by_page = IsParkedByPage(s) && s.minor >= SLUICE_MINOR_PARK;
  if (IsParked(a) && !by_page) {
    EndPark(a, "pid " + std::to_string(s.pid) + " while the agent was away", now_ns);
  } else if (!IsParked(a) && by_page && Served(a).size() == 1) {
    BeginPark(a, "the agent before its restart", now_ns);
  }
}

void Node::ForgetPark(Allocation& a) {
  if (!IsParked(a) || !Served(a).empty()) return;
  a.park.state = Park::State::kAwake;
  a.park.since_ns = now_ns_;
  SetParked(a, false);
}

bool Node::Worked(Session& s, size_t gpu) {
  const sluice_gpu_counters c = Read(s, gpu);
  Session::ParkedPage& parked = s.parked[gpu];
  if (parked.since == 0 || c.generation < parked.since) return false;
  const Bytes allocated = Sum(c.live_bytes, c.unmanaged_bytes);
  if (!std::exchange(parked.known, true)) {
    parked.launches = c.launches;
    parked.allocated = allocated;
  }
  parked.allocated = std::min(parked.allocated, allocated);
  return c.launches != parked.launches || allocated > parked.allocated;
}

void Node::UpdateParks(uint64_t now_ns) {
  for (auto& [group, a] : allocations_) {
    IsParked(*a) ? UpdatePark(*a, now_ns) : ParkIdle(*a, now_ns);
  }
}

void Node::UpdatePark(Allocation& a, uint64_t now_ns) {
  const std::vector<Session*> served = Served(a);
  bool followed = !served.empty();
  Bytes resident = 0;
  for (Session* s : served) {
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
      // A launch that needed no token (made inside a driver's call), or an allocation.
      if (Worked(*s, i)) return EndPark(a, "pid " + std::to_string(s->pid), now_ns);
      followed &= s->parked[i].known;
      resident = Sum(resident, Read(*s, i).resident_bytes);
    }
  }
  if (a.park.state == Park::State::kParked) return;
  const uint64_t took = now_ns - a.park.since_ns;
  if (followed && resident == 0) {
    a.park.state = Park::State::kParked;
    a.park.since_ns = now_ns;
    const ParkStatus now = StatusOfPark(a);
    AddFinding(a.spec.id, "parked",
               "by " + a.park.reason + ": " + settings::HumanBytes(a.park.resident) + " left the GPU in " +
                   Seconds(took) + "; " + settings::HumanBytes(now.unmanaged) + " of unmanaged memory and " +
                   settings::HumanBytes(now.contexts) + " of contexts stay");
  } else if (took > config_.reclaim_late_ms * kMs && !std::exchange(a.park.delay_reported, true)) {
    AddFinding(a.spec.id, "park put off", StatusOfPark(a).waits);
  }
}

void Node::ParkIdle(Allocation& a, uint64_t now_ns) {
  const uint64_t after_ns = a.effective.park_after_s.value_or(0) * 1000ull * kMs;
  if (after_ns == 0) return;
  const std::vector<Session*> served = Served(a);
  bool holds = false;
  for (const Session* s : served) {
    uint64_t worked = s->admitted_ns;
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
      worked = std::max(worked, s->demand[i].LastWork());
      holds |= Read(*s, i).resident_bytes > 0;
    }
    if (now_ns - worked < after_ns) return;
  }
  if (!holds) return;
  std::string error;
  const std::string reason = "park-after=" + settings::FormatDuration(a.effective.park_after_s.value_or(0));
  if (a.removed || ParkNow(a.spec.id, reason, now_ns, &error) || std::exchange(a.park.refusal_reported, true)) return;
  AddFinding(a.spec.id, "park put off", error);
}

ParkStatus Node::StatusOfPark(const Allocation& a) const {
  ParkStatus out;
  out.parks = a.park.parks;
  out.wakes = a.park.wakes;
  out.woken_by = a.park.woken_by;
  out.since_ms = a.park.since_ns == 0 ? 0 : (now_ns_ - a.park.since_ns) / kMs;
  if (!IsParked(a)) return out;
  const bool parked = a.park.state == Park::State::kParked;
  out.state = parked ? "parked" : "parking";
  out.reason = a.park.reason;
  bool followed = true;
  for (const Session* s : Served(a)) {
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
      const sluice_gpu_counters c = Read(*s, i);
      out.resident = Sum(out.resident, c.resident_bytes);
      out.unmanaged = Sum(out.unmanaged, c.unmanaged_bytes);
      out.contexts = Sum(out.contexts, s->contexts[i]);
      followed &= s->parked[i].known;
    }
  }
  if (parked || out.since_ms <= config_.reclaim_late_ms) return out;
  out.waits = followed
                  ? settings::HumanBytes(out.resident) + " are in use by work that is queued; they leave when it ends"
                  : "a process does not answer: it is stopped or gets no CPU time";
  return out;
}

}  // namespace sluice::agent
