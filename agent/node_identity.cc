// Node: whose processes are whose.
#include <algorithm>
#include <utility>

#include "agent/node_private.h"

namespace sluice::agent {

void Node::SetHolder(const std::string& id, const std::string& pod_uid, const std::string& container) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Allocation& a = *it->second;
  a.holder_container = container;
  if (a.holder_uid == pod_uid) return;
  a.holder_uid = pod_uid;
  // Copies: a refused session leaves the set.
  for (const SessionId session : std::set<SessionId>(a.sessions)) {
    Session& s = *sessions_.at(session);
    if (!MayUse(s.container, pod_uid)) RefuseForeign(s);
  }
}

std::map<std::string, AllocationIdentity> Node::KnownIdentities() const {
  std::map<std::string, AllocationIdentity> out;
  for (const auto& [id, a] : by_id_) {
    AllocationIdentity& identity = out[id];
    identity.pod_uid = a->holder_uid;
    identity.container = a->holder_container;
    for (const GpuUnits& g : a->spec.gpus) identity.gpus.insert(g.uuid);
    identity.runner = a->spec.tied ? a->spec.owner : 0;
    for (const SessionId session : a->sessions) {
      const Session& s = *sessions_.at(session);
      if (s.phase != Session::Phase::kServed || s.pid <= 0) continue;
      identity.pids.insert(s.pid);
      if (!s.container.id.empty()) identity.container_ids.insert(s.container.id);
    }
  }
  return out;
}

std::map<std::string, Bytes> Node::UnmanagedLimits(const std::string& id) const {
  std::map<std::string, Bytes> out;
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return out;
  const Allocation& a = *it->second;
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    const CardState& card = *cards_.at(a.spec.gpus[i].uuid);
    Bytes exposed = 0;
    for (const SessionId s : a.sessions) {
      if (const Ledger::MemberView* view = card.ledger.Find(Member(s, i))) exposed += view->exposure;
    }
    // Processes that attach and use no GPU raise no limit beyond that.
    const Bytes contexts =
        std::min((a.sessions.size() + 1) * kMaxContextBytes, ContextAllotment(a, i) + kMaxContextBytes);
    out[card.card.uuid] = std::max(exposed, Guaranteed(a, i)) + contexts;
  }
  return out;
}

void Node::RefuseForeign(Session& s) {
  std::string own;
  if (!s.container.pod_uid.empty()) {
    for (const auto& [id, a] : by_id_) {
      if (a->holder_uid == s.container.pod_uid) own = id;
    }
  }
  ++forged_;
  AddTenantEvent(own, "forged identity",
                 "pid " + std::to_string(s.pid) +
                     (s.container.pod_uid == kHiddenPod ? " hides its cgroup, and" : " of pod " + s.container.pod_uid) +
                     " connected to the socket of another pod's allocation and was refused");
  Refuse(s, "this socket belongs to another pod's allocation", false);
}

void Node::SetForeign(std::vector<ForeignProcess> foreign) {
  for (const ForeignProcess& f : foreign) {
    const bool known =
        std::ranges::any_of(foreign_, [&](const ForeignProcess& old) { return old.pid == f.pid && old.gpu == f.gpu; });
    if (known) continue;
    AddFinding(f.allocation, "foreign card",
               "pid " + std::to_string(f.pid) + " uses GPU " + f.gpu + ", which its container was not given",
               f.allocation.empty() ? f.pod_uid : "");
  }
  foreign_ = std::move(foreign);
}

void Node::Forged(const std::string& allocation, const std::string& text) {
  ++forged_;
  AddFinding(allocation, "forged identity", text);
}

}  // namespace sluice::agent
