// Node: its status for people and for metrics.
#include <tuple>

#include "agent/node_private.h"

namespace sluice::agent {

void Node::SetUnhooked(const std::string& id, const std::vector<int64_t>& pids) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  if (!pids.empty() && it->second->unhooked.empty()) {
    AddFinding(id, "not hooked",
               "pid " + std::to_string(pids.front()) + " uses the GPU in this container without the hook");
  }
  it->second->unhooked = pids;
}

std::vector<std::pair<std::string, std::set<int64_t>>> Node::AttachedPids() const {
  std::vector<std::pair<std::string, std::set<int64_t>>> out;
  for (const auto& [id, a] : by_id_) {
    std::set<int64_t> pids;
    for (const SessionId s : a->sessions) pids.insert(sessions_.at(s)->pid);
    out.emplace_back(id, std::move(pids));
  }
  return out;
}

void Node::ObserveWorkingSets(const Reading& reading, uint64_t now_ns) {
  for (auto& [group, a] : allocations_) {
    a->peaks.resize(a->spec.gpus.size());
    for (size_t i = 0; i < a->peaks.size(); ++i) {
      const auto sample = reading.samples.find({group, i});
      a->peaks[i].Observe(sample == reading.samples.end() ? DayPeak::Sample{} : sample->second,
                          config_.startup_s * 1000ull * kMs, now_ns);
    }
  }
}

AllocationStatus Node::StatusOf(const Allocation& a) const {
  AllocationStatus out;
  out.id = a.spec.id;
  out.pod = a.pod ? a.pod->pod : a.spec.pod;
  out.ns = a.pod ? a.pod->ns : a.spec.ns;
  out.container = a.pod ? a.pod->container : a.spec.container;
  out.claim = a.spec.claim;
  out.settings = settings::Format(a.effective);
  out.ended = a.ended;
  if (const auto source = sources_.find(a.spec.id); source != sources_.end()) {
    out.events_left_out = source->second.left_out;
  }
  out.held = a.held;
  out.park = StatusOfPark(a);
  bool served = false;
  std::string unproven;
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    ShareStatus share;
    share.uuid = a.spec.gpus[i].uuid;
    share.units = a.spec.gpus[i].units;
    share.percent = Percent(a, i);
    share.guaranteed = Guaranteed(a, i);
    share.limit = a.effective.memory_limit.value_or(cards_.at(share.uuid)->card.memory);
    std::tie(share.compute_request, share.compute_limit) = Compute(a, i);
    share.link = cards_.at(share.uuid)->link.Rate(a.group);
    share.compute_used = cards_.at(share.uuid)->arbiter.Share(a.group, now_ns_);
    const Bytes capacity = cards_.at(share.uuid)->ledger.capacity();
    share.fraction = capacity == 0 ? 0 : static_cast<double>(Size(a, i)) / static_cast<double>(capacity);
    if (i < a.peaks.size() && a.peaks[i].is_known()) {
      Footprint footprint = {.peak = a.peaks[i].Peak(now_ns_),
                             .size = Size(a, i),
                             .gpu = capacity,
                             .by_memory = a.effective.gpu_memory.has_value()};
      for (const SessionId id : a.sessions) {
        const sluice_gpu_counters c = Read(*sessions_.at(id), i);
        footprint.live = Sum(footprint.live, Sum(c.live_bytes, c.unmanaged_bytes));
        footprint.unmanaged = Sum(footprint.unmanaged, c.unmanaged_bytes);
      }
      share.touched_peak = footprint.peak;
      share.right_size = FindRightSize(footprint);
    }
    for (const SessionId s : a.sessions) {
      const Ledger::MemberView* view = cards_.at(share.uuid)->ledger.Find(Member(s, i));
      if (view == nullptr) continue;
      share.budget += view->budget;
      share.overdue += view->overdue();
    }
    out.gpus.push_back(share);
  }
  for (const SessionId id : a.sessions) {
    const Session& s = *sessions_.at(id);
    if (s.phase != Session::Phase::kServed) continue;
    served = true;
    const Session::Evidence& e = s.evidence;
    ProcessStatus p{s.pid, s.command, s.version, e.unproven ? "unproven" : e.seen ? "proven" : "idle", {}, {}};
    if (e.unproven) {
      p.reason = e.reason;
      if (unproven.empty()) unproven = "pid " + std::to_string(s.pid) + ": " + e.reason;
    }
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) p.gpus.push_back(Read(s, i));
    out.processes.push_back(std::move(p));
  }
  if (!a.unhooked.empty()) {
    out.hook_state = "not hooked";
    out.hook_reason = "pid " + std::to_string(a.unhooked.front()) + " uses the GPU without the hook";
  } else if (!unproven.empty()) {
    out.hook_state = "unproven";
    out.hook_reason = unproven;
  } else {
    out.hook_state = served ? "attached" : a.refused ? "refused" : "expected";
  }
  return out;
}

std::vector<CardStatus> Node::Cards() const {
  std::vector<CardStatus> out;
  for (const auto& [uuid, c] : cards_) {
    CardStatus card;
    card.uuid = uuid;
    card.model = c->card.model;
    card.memory = c->card.memory;
    card.reserve = c->card.memory - c->ledger.capacity();
    card.guaranteed = c->ledger.guaranteed();
    card.lent = c->ledger.lent();
    card.overdue = c->ledger.overdue();
    card.used = c->used;
    card.cgroup_memory = c->card.cgroup_memory;
    card.numa = c->card.numa;
    card.tokens = c->tokens;
    card.tokens_ns = c->tokens_ns + (c->tokens ? now_ns_ - std::min(now_ns_, c->tokens_since_ns) : 0);
    card.free_units = FreeUnits(uuid);
    out.push_back(std::move(card));
  }
  return out;
}

NodeStatus Node::Status() const {
  NodeStatus out;
  out.config_error = config_error_;
  out.offer_problem = offer_problem_;
  out.malformed_frames = malformed_;
  out.forged_claims = forged_;
  out.foreign = foreign_;
  out.late_reclaims = late_;
  out.host_limit = host_.capacity();
  out.host_bytes = host_.held();
  out.cards = Cards();
  for (const auto& [group, a] : allocations_) out.allocations.push_back(StatusOf(*a));
  return out;
}

}  // namespace sluice::agent
