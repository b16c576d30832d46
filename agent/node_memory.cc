// Node: leases of memory-limit, and the container's own view of its memory.
#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/node_private.h"

namespace sluice::agent {
namespace {

constexpr size_t kMaxObservers = 256;  // of one allocation
constexpr size_t kMaxWaiting = 1024;   // requests of one allocation after a restart
constexpr uint64_t kUseNs = 500 * kMs;

}  // namespace

void Node::Observe(Session& s) {
  Allocation& a = *s.allocation;
  if (a.observers.size() >= kMaxObservers) {
    return Refuse(s, "allocation " + a.spec.id + " has " + std::to_string(kMaxObservers) +
                         " connections already that ask for its memory");
  }
  a.sessions.erase(s.id);
  a.observers.insert(s.id);
  s.phase = Session::Phase::kObserving;
  Welcome(s);
  port_->Send(s.id, Frame(s, SLUICE_PING));
}

Bytes Node::Visible(const Allocation& a, size_t gpu) const {
  const Bytes card = cards_.at(a.spec.gpus[gpu].uuid)->card.memory;
  const bool limit = a.effective.visible == settings::Visible::kLimit;
  return limit ? std::min(a.effective.memory_limit.value_or(card), card) : Size(a, gpu);
}

void Node::SetLimits(Allocation& a) {
  for (size_t i = 0; i < a.leases.size(); ++i) {
    a.leases[i].SetLimit(a.effective.memory_limit.value_or(cards_.at(a.spec.gpus[i].uuid)->card.memory));
  }
}

void Node::AddLeases(Session& s, bool returning, uint64_t now_ns) {
  Allocation& a = *s.allocation;
  for (size_t i = 0; i < a.leases.size(); ++i) {
    Leases& leases = a.leases[i];
    // A returning process that did not answer in time has not filled its page: its account is not known.
    const bool is_filled = s.page != nullptr && (!returning || __atomic_load_n(&s.page->magic, __ATOMIC_RELAXED) != 0);
    if (s.minor < SLUICE_MINOR_LEASES || !is_filled) {
      leases.AddUnleased(Member(s.id, i));
      continue;
    }
    leases.Add(Member(s.id, i), &s.page->lease[i], returning);
    // While processes may still return, their leases are not known.
    if (now_ns >= recover_until_ns_) leases.Grant(Member(s.id, i), 0);
    if (leases.size() != 2) continue;
    for (const SessionId other : a.sessions) {  // it is not alone any more
      if (other != s.id) SendMemory(*sessions_.at(other), i, 0);
    }
  }
}

void Node::RemoveLeases(Session& s) {
  Allocation& a = *s.allocation;
  for (size_t i = 0; i < a.leases.size(); ++i) {
    a.leases[i].Remove(Member(s.id, i));
    if (a.leases[i].size() != 1) continue;
    for (const SessionId other : a.sessions) SendMemory(*sessions_.at(other), i, 0);
  }
}

void Node::SendMemory(Session& s, size_t gpu, uint64_t id) {
  if ((s.phase != Session::Phase::kServed && s.phase != Session::Phase::kObserving) || s.minor < SLUICE_MINOR_LEASES)
    return;
  const Allocation& a = *s.allocation;
  const Leases& leases = a.leases[gpu];
  sluice_frame f = Frame(s, SLUICE_MEMORY);
  sluice_memory& m = f.u.memory;
  SetText(m.uuid, sizeof(m.uuid), a.spec.gpus[gpu].uuid);
  m.id = id;
  m.granted_bytes = leases.Granted(Member(s.id, gpu));
  m.used_bytes = leases.charged();
  m.total_bytes = Visible(a, gpu);
  m.processes = static_cast<uint32_t>(leases.size());
  for (const SessionId other : a.sessions) {
    const Session& o = *sessions_.at(other);
    if (gpu < o.use.size()) m.utilization = std::min<uint32_t>(m.utilization + o.use[gpu].millionths, 1000000);
  }
  port_->Send(s.id, f);
}

void Node::FillLease(const Session& s, size_t gpu, sluice_budget* budget) {
  const Leases& leases = s.allocation->leases[gpu];
  budget->processes = static_cast<uint32_t>(leases.size());
  if (!leases.IsLeased(Member(s.id, gpu))) return;
  budget->leased = 1;
  budget->lease_slot = static_cast<uint8_t>(gpu);
  budget->granted_bytes = leases.Granted(Member(s.id, gpu));
}

void Node::MemoryRequest(Session& s, const sluice_memory& request, uint64_t now_ns) {
  if (s.phase != Session::Phase::kServed && s.phase != Session::Phase::kObserving) return;
  Allocation& a = *s.allocation;
  if (request.missing_bytes > 0 && now_ns < recover_until_ns_) {
    if (a.waiting >= kMaxWaiting) return;
    ++a.waiting;
    waiting_.emplace_back(s.id, request);
    return;
  }
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    if (std::strncmp(request.uuid, a.spec.gpus[i].uuid.c_str(), sizeof(request.uuid)) != 0) continue;
    if (request.missing_bytes > 0) a.leases[i].Grant(Member(s.id, i), request.missing_bytes);
    return SendMemory(s, i, request.id);
  }
  sluice_frame f = Frame(s, SLUICE_MEMORY);  // not a GPU of the container
  SetText(f.u.memory.uuid, sizeof(f.u.memory.uuid),
          std::string(request.uuid, strnlen(request.uuid, SLUICE_UUID_CHARS)));
  f.u.memory.id = request.id;
  port_->Send(s.id, f);
}

void Node::AnswerWaiting(uint64_t now_ns) {
  if (waiting_.empty() || now_ns < recover_until_ns_) return;
  for (const auto& [group, a] : allocations_) a->waiting = 0;
  for (const auto& [session, request] : std::exchange(waiting_, {})) {
    const auto it = sessions_.find(session);
    if (it != sessions_.end()) MemoryRequest(*it->second, request, now_ns);
  }
}

void Node::ProcessesRequest(Session& s, const sluice_processes& request) {
  if (s.phase != Session::Phase::kServed && s.phase != Session::Phase::kObserving) return;
  const Allocation& a = *s.allocation;
  sluice_frame f = Frame(s, SLUICE_PROCESSES);
  sluice_processes& out = f.u.processes;
  std::memcpy(out.uuid, request.uuid, sizeof(out.uuid));
  out.id = request.id;
  out.first = request.first;
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    if (std::strncmp(request.uuid, a.spec.gpus[i].uuid.c_str(), sizeof(request.uuid)) != 0) continue;
    for (const SessionId id : a.sessions) {
      const Session& o = *sessions_.at(id);
      if (o.phase != Session::Phase::kServed) continue;
      const uint32_t index = out.count++;
      if (index < request.first || index - request.first >= SLUICE_PROCESSES_A_FRAME) continue;
      out.list[index - request.first] = {o.own_pid, o.use[i].millionths, a.leases[i].Charged(Member(id, i))};
    }
  }
  port_->Send(s.id, f);
}

void Node::NoteUse(Session& s, size_t gpu, const sluice_gpu_counters& counters, uint64_t now_ns) {
  s.allocation->leases[gpu].Observe(Member(s.id, gpu), Sum(counters.live_bytes, counters.unmanaged_bytes));
  Session::GpuTime& use = s.use[gpu];
  if (use.since_ns == 0) {
    use.since_ns = now_ns;
    use.spent_ns = counters.kernel_ns;
  }
  const uint64_t passed = now_ns - use.since_ns;
  if (passed < kUseNs) return;
  const uint64_t spent = counters.kernel_ns > use.spent_ns ? counters.kernel_ns - use.spent_ns : 0;
  use.millionths = static_cast<uint32_t>(std::min(spent, passed) / (passed / 1000000));
  use.since_ns = now_ns;
  use.spent_ns = counters.kernel_ns;
}

}  // namespace sluice::agent
