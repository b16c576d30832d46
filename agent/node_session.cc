// Node: connections and their frames.
#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/counters.h"
#include "agent/node_private.h"
#include "sluice/version.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kMaxNotices = 20;  // of one process, each window
constexpr uint64_t kNoticeWindowNs = 10000 * kMs;

// Text of another process: at most `size` characters, unprintable ones replaced.
std::string Clean(const char* text, size_t size) {
  std::string out(text, strnlen(text, size));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 127) c = '?';
  }
  return out;
}

}  // namespace

sluice_frame Node::Frame(Session& s, uint16_t type) {
  sluice_frame f{};
  f.h.magic = SLUICE_WIRE_MAGIC;
  f.h.major = SLUICE_WIRE_MAJOR;
  f.h.minor = SLUICE_WIRE_MINOR;
  f.h.type = type;
  f.h.seq = ++s.seq;
  return f;
}

void Node::Opened(SessionId session, const std::string& id, int64_t pid, sluice_page* page, uint64_t now_ns,
                  const ContainerKey& container) {
  now_ns_ = now_ns;
  auto s = std::make_unique<Session>();
  s->id = session;
  s->pid = pid;
  s->page = page;
  s->container = container;
  s->opened_ns = now_ns;
  const auto a = by_id_.find(id);
  Session& ref = *s;
  sessions_[session] = std::move(s);
  if (a == by_id_.end()) return Refuse(ref, "allocation " + id + " is not served by this agent");
  if (!MayUse(container, a->second->holder_uid)) return RefuseForeign(ref);
  ref.allocation = a->second;
  if (ref.allocation->sessions.size() >= config_.max_processes) {
    ref.allocation = nullptr;
    return Refuse(ref, "allocation " + id + " has " + std::to_string(config_.max_processes) +
                           " processes already (max_processes)");
  }
  ref.allocation->sessions.insert(session);
}

void Node::SetPage(SessionId session, sluice_page* page) {
  const auto it = sessions_.find(session);
  if (it != sessions_.end()) it->second->page = page;
}

void Node::Refuse(Session& s, const std::string& reason, bool blame) {
  sluice_frame f = Frame(s, SLUICE_REFUSE);
  SetText(f.u.refuse.reason, sizeof(f.u.refuse.reason), reason);
  port_->Send(s.id, f);
  if (blame) {
    if (s.allocation != nullptr) s.allocation->refused = true;
    AddTenantEvent(s.allocation != nullptr ? s.allocation->spec.id : "", "refused",
                   "pid " + std::to_string(s.pid) + ": " + reason);
  }
  const SessionId id = s.id;
  Drop(s);
  port_->Close(id);
}

void Node::Received(SessionId session, const void* data, size_t bytes, uint64_t now_ns) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  now_ns_ = now_ns;
  Session& s = *it->second;
  sluice_frame f;
  if (bytes != sizeof(f)) {
    ++malformed_;
    return Refuse(s, "a frame of " + std::to_string(bytes) + " bytes; accepted: " + std::to_string(sizeof(f)));
  }
  std::memcpy(&f, data, sizeof(f));
  if (f.h.magic != SLUICE_WIRE_MAGIC) {
    ++malformed_;
    return Refuse(s, "not a sluice frame");
  }
  if (f.h.major != SLUICE_WIRE_MAJOR) {
    return Refuse(s, "this agent " SLUICE_VERSION " speaks protocol " + std::to_string(SLUICE_WIRE_MAJOR) + "." +
                         std::to_string(SLUICE_WIRE_MINOR) + ", the hook " + std::to_string(f.h.major) + "." +
                         std::to_string(f.h.minor) + ": restart the container after the upgrade");
  }
  const bool hello = f.h.type == SLUICE_HELLO;
  if (hello != (s.phase == Session::Phase::kConnected)) {
    ++malformed_;
    return Refuse(s, hello ? "a second HELLO" : "a frame before HELLO");
  }
  switch (f.h.type) {
    case SLUICE_HELLO:
      s.minor = f.h.minor;
      return Hello(s, f.u.hello, now_ns);
    case SLUICE_MEMORY_REQUEST:
      return MemoryRequest(s, f.u.memory, now_ns);
    case SLUICE_PROCESSES_REQUEST:
      return ProcessesRequest(s, f.u.processes);
    case SLUICE_PONG:
      if (s.phase == Session::Phase::kReturning) Admit(s, now_ns);
      return;
    case SLUICE_NOTICE:
      return Notice(s, f.u.notice, now_ns);
    case SLUICE_TOKEN_REQUEST:
    case SLUICE_TOKEN_RELEASE:
      return Token(s, f, now_ns);
    default:
      ++malformed_;
      return Refuse(s, "a frame of the unknown type " + std::to_string(f.h.type));
  }
}

void Node::Hello(Session& s, const sluice_hello& hello, uint64_t now_ns) {
  s.version = Clean(hello.version, sizeof(hello.version));
  s.command = Clean(hello.command, sizeof(hello.command));
  s.own_pid = hello.pid;
  if ((hello.flags & SLUICE_HELLO_OBSERVER) != 0) return Observe(s);
  if ((hello.flags & SLUICE_HELLO_RETURNING) != 0) {
    s.phase = Session::Phase::kReturning;
    s.opened_ns = now_ns;
    Welcome(s);
    port_->Send(s.id, Frame(s, SLUICE_PING));
    return;
  }
  if (now_ns < recover_until_ns_) {
    s.phase = Session::Phase::kWaiting;
    return;
  }
  Welcome(s);
  Admit(s, now_ns);
}

void Node::Welcome(Session& s) {
  sluice_frame f = Frame(s, SLUICE_WELCOME);
  SetText(f.u.welcome.version, sizeof(f.u.welcome.version), SLUICE_VERSION);
  SetText(f.u.welcome.allocation, sizeof(f.u.welcome.allocation), s.allocation->spec.id);
  f.u.welcome.gpus = static_cast<uint32_t>(s.allocation->spec.gpus.size());
  port_->Send(s.id, f);
}

void Node::Admit(Session& s, uint64_t now_ns) {
  Allocation& a = *s.allocation;
  const bool returning = s.phase == Session::Phase::kReturning;
  s.phase = Session::Phase::kServed;
  s.evidence = {};
  s.evidence.beat_ns = now_ns;
  s.demand.resize(a.spec.gpus.size());
  s.overdue_since_ns.resize(a.spec.gpus.size());
  s.sent.resize(a.spec.gpus.size());
  s.kernel_ns.resize(a.spec.gpus.size());
  s.launches.resize(a.spec.gpus.size());
  s.kernel_since.assign(a.spec.gpus.size(), now_ns);
  s.uncounted.resize(a.spec.gpus.size());
  s.deducted.resize(a.spec.gpus.size());
  s.contexts.resize(a.spec.gpus.size());
  s.parked.assign(a.spec.gpus.size(), {});
  s.admitted_ns = now_ns;
  s.link.assign(a.spec.gpus.size(), {});
  s.use.resize(a.spec.gpus.size());
  AddLeases(s, returning, now_ns);
  if (std::exchange(a.stale, false)) Refresh(a);  // a process uses it, so it is in use whatever kubelet lists
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    Ledger& ledger = cards_.at(a.spec.gpus[i].uuid)->ledger;
    ledger.AddMember(Member(s.id, i), a.group);
    host_.AddMember(Member(s.id, i), a.group);
    if (returning) {
      const sluice_gpu_counters c = Read(s, i);
      // The process still follows its old budget and may hold that much. Borrowed bytes are accepted only after a
      // restart, when the ledger is new.
      const bool restarted = now_ns < recover_until_ns_ + kReturningNs;
      const Bytes limit = restarted ? ledger.capacity() : Guaranteed(a, i);
      // A parked one has raised its own budget, but has not used it.
      const Bytes may_hold = IsParkedByPage(s) ? Sum(c.resident_bytes, c.unmanaged_bytes) : c.budget_bytes;
      ledger.Restore(Member(s.id, i), std::min(may_hold, limit));
      s.demand[i].Observe(c.live_bytes, c.unmanaged_bytes, c.launches, now_ns);
      s.launches[i] = c.launches;
      host_.Restore(Member(s.id, i), std::min(c.host_bytes, host_.capacity()));
    }
  }
  if (returning) ResumePark(s, now_ns);
  const bool first = !a.ever_attached;
  a.ever_attached = true;
  a.refused = false;
  AddTenantEvent(a.spec.id, returning ? "returned" : "attached", [&] {
    return "pid " + std::to_string(s.pid) + " (" + s.command + ") hook " + s.version + (first ? "" : ", again");
  });
  dirty_ = true;
}

void Node::Notice(Session& s, const sluice_notice& notice, uint64_t now_ns) {
  if (s.phase == Session::Phase::kObserving) return;
  if (now_ns - s.notice_window_ns > kNoticeWindowNs) {
    s.notice_window_ns = now_ns;
    s.notices = 0;
  }
  if (++s.notices > kMaxNotices) return;  // the list of events is bounded and shared
  static constexpr const char* kKinds[] = {"notice",        "thrash began",  "thrash ended",
                                           "limit reached", "engine failed", "unmanaged VMM"};
  const char* kind = notice.kind < std::size(kKinds) ? kKinds[notice.kind] : kKinds[0];
  AddTenantEvent(s.allocation->spec.id, kind,
                 [&] { return "pid " + std::to_string(s.pid) + ": " + Clean(notice.text, sizeof(notice.text)); });
}

void Node::Closed(SessionId session, uint64_t now_ns) {
  now_ns_ = now_ns;
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  Session& s = *it->second;
  if (s.phase == Session::Phase::kServed) {
    AddTenantEvent(s.allocation->spec.id, "ended",
                   [&] { return "pid " + std::to_string(s.pid) + " (" + s.command + ")"; });
  }
  Drop(s);
}

void Node::Drop(Session& s) {
  Allocation* a = s.allocation;
  const SessionId id = s.id;
  if (a != nullptr) {
    a->sessions.erase(id);
    a->observers.erase(id);
    if (s.phase == Session::Phase::kServed) {
      a->used_ns = now_ns_;
      RemoveLeases(s);
      for (size_t i = 0; i < a->spec.gpus.size(); ++i) {
        AddEnded(a->ended[i], Read(s, i));
        CardState& card = *cards_.at(a->spec.gpus[i].uuid);
        card.ledger.RemoveMember(Member(id, i));
        host_.RemoveMember(Member(id, i));
        card.arbiter.RemoveHolder(Member(id, i), now_ns_);
        s.phase = Session::Phase::kConnected;  // it gets no further frame
        Pump(card, now_ns_);
      }
    }
  }
  sessions_.erase(id);
  if (a == nullptr) return;
  ForgetPark(*a);
  if (a->removed && a->sessions.empty()) Forget(*a);
  dirty_ = true;
}

}  // namespace sluice::agent
