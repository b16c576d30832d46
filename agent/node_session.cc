// Node: sessions, frames, pages and the movement of budgets.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <utility>

#include "agent/node.h"
#include "agent/node_private.h"
#include "sluice/version.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kHelloNs = 5000 * kMs;      // a connection that says nothing for so long is closed
constexpr uint64_t kReturningNs = 1000 * kMs;  // a returning hook that does not answer PING is served as a new one
constexpr double kSwitchBytesPerNs = 22;       // managed memory, both directions at once (H200)
constexpr uint64_t kSilentNs = 2500 * kMs;     // a living hook's page has a heartbeat every second at least
constexpr uint64_t kNoticesPerWindow = 20;
constexpr uint64_t kNoticeWindowNs = 10000 * kMs;

// What another process wrote: at most `size` characters, only printable ones.
std::string Clean(const char* text, size_t size) {
  std::string out(text, strnlen(text, size));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 127) c = '?';
  }
  return out;
}

void SetText(char* to, size_t size, const std::string& text) {
  std::memset(to, 0, size);
  text.copy(to, size - 1);
}

uint64_t Load(const uint64_t& v) { return __atomic_load_n(&v, __ATOMIC_RELAXED); }
uint64_t Add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

// Counters that only rise, summed up when their process ends.
void Accumulate(sluice_gpu_counters& sum, const sluice_gpu_counters& c) {
  sum.bytes_in += c.bytes_in;
  sum.bytes_out += c.bytes_out;
  sum.bytes_saved += c.bytes_saved;
  sum.fault_bytes += c.fault_bytes;
  sum.launches += c.launches;
  sum.launches_known += c.launches_known;
  sum.hits += c.hits;
  sum.misses += c.misses;
  sum.stall_ns += c.stall_ns;
  sum.over_budget_launches += c.over_budget_launches;
  sum.wrong_predictions += c.wrong_predictions;
  sum.kernel_ns += c.kernel_ns;
  sum.kernel_estimated_ns += c.kernel_estimated_ns;
  sum.over_budget_max = std::max(sum.over_budget_max, c.over_budget_max);
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

void Node::Opened(SessionId session, const std::string& id, int64_t pid, const sluice_page* page, uint64_t now_ns) {
  auto s = std::make_unique<Session>();
  s->id = session;
  s->pid = pid;
  s->page = page;
  s->opened_ns = now_ns;
  const auto a = by_id_.find(id);
  Session& ref = *s;
  sessions_[session] = std::move(s);
  if (a == by_id_.end()) return Refuse(ref, "allocation " + id + " is not served by this agent");
  ref.allocation = a->second;
  if (ref.allocation->sessions.size() >= config_.max_processes) {
    ref.allocation = nullptr;
    return Refuse(ref, "allocation " + id + " has " + std::to_string(config_.max_processes) +
                           " processes already (max_processes)");
  }
  ref.allocation->sessions.insert(session);
}

void Node::Refuse(Session& s, const std::string& reason) {
  sluice_frame f = Frame(s, SLUICE_REFUSE);
  SetText(f.u.refuse.reason, sizeof(f.u.refuse.reason), reason);
  port_->Send(s.id, f);
  if (s.allocation != nullptr) s.allocation->refused = true;
  AddEvent(s.allocation != nullptr ? s.allocation->spec.id : "", "refused",
           "pid " + std::to_string(s.pid) + ": " + reason);
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
    return Refuse(s, hello ? "HELLO was said already" : "HELLO is expected first");
  }
  switch (f.h.type) {
    case SLUICE_HELLO:
      return Hello(s, f.u.hello, now_ns);
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
  if (s.pid == 0) s.pid = hello.pid;  // not told by the kernel: no hostPID
  if ((hello.flags & SLUICE_HELLO_RETURNING) != 0) {
    s.phase = Session::Phase::kReturning;
    s.opened_ns = now_ns;
    Welcome(s, now_ns);
    port_->Send(s.id, Frame(s, SLUICE_PING));
    return;
  }
  if (now_ns < recover_until_ns_) {
    s.phase = Session::Phase::kWaiting;
    return;
  }
  Welcome(s, now_ns);
  Admit(s, now_ns);
}

void Node::Welcome(Session& s, uint64_t) {
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
  s.demand.resize(a.spec.gpus.size());
  s.debt_since_ns.resize(a.spec.gpus.size());
  s.sent.resize(a.spec.gpus.size());
  s.kernel_ns.resize(a.spec.gpus.size());
  s.kernel_since.assign(a.spec.gpus.size(), now_ns);
  s.beyond.resize(a.spec.gpus.size());
  if (std::exchange(a.stale, false)) Refresh(a);  // it lives, whatever kubelet says
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    Ledger& ledger = cards_.at(a.spec.gpus[i].uuid)->ledger;
    ledger.AddMember(Member(s.id, i), a.group);
    host_.AddMember(Member(s.id, i), a.group);
    if (returning) {
      const sluice_gpu_counters c = Read(s, i);
      // Its old budget still binds it, and is all that it may hold; so was it when the old agent gave it out.
      const bool restarted = now_ns < recover_until_ns_ + kReturningNs;
      const Bytes most =
          restarted ? ledger.capacity() : Guaranteed(a, i);  // borrowed bytes are taken on trust only after a restart
      ledger.Restore(Member(s.id, i), std::min(c.budget_bytes, most));
      s.demand[i].See(c.live_bytes, c.plain_bytes, c.launches, now_ns);
      host_.Restore(Member(s.id, i), std::min(c.host_bytes, host_.capacity()));
    }
  }
  const bool first = !a.ever_attached;
  a.ever_attached = true;
  a.refused = false;
  AddEvent(a.spec.id, returning ? "returned" : "attached",
           "pid " + std::to_string(s.pid) + " (" + s.command + ") hook " + s.version + (first ? "" : ", again"));
  dirty_ = true;
}

void Node::Notice(Session& s, const sluice_notice& notice, uint64_t now_ns) {
  if (now_ns - s.notice_window_ns > kNoticeWindowNs) {
    s.notice_window_ns = now_ns;
    s.notices = 0;
  }
  if (++s.notices > kNoticesPerWindow) return;  // one client's chatter must not drive out others' events
  static constexpr const char* kKinds[] = {"notice",        "thrash began",  "thrash ended",
                                           "limit reached", "engine failed", "plain VMM"};
  const char* kind = notice.kind < std::size(kKinds) ? kKinds[notice.kind] : kKinds[0];
  AddEvent(s.allocation->spec.id, kind,
           "pid " + std::to_string(s.pid) + ": " + Clean(notice.text, sizeof(notice.text)));
}

void Node::Closed(SessionId session, uint64_t now_ns) {
  now_ns_ = now_ns;
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  Session& s = *it->second;
  if (s.phase == Session::Phase::kServed) {
    AddEvent(s.allocation->spec.id, "ended", "pid " + std::to_string(s.pid) + " (" + s.command + ")");
  }
  Drop(s);
}

void Node::Drop(Session& s) {
  Allocation* a = s.allocation;
  const SessionId id = s.id;
  if (a != nullptr) {
    a->sessions.erase(id);
    if (s.phase == Session::Phase::kServed) {
      a->used_ns = now_ns_;
      for (size_t i = 0; i < a->spec.gpus.size(); ++i) {
        Accumulate(a->ended[i], Read(s, i));
        cards_.at(a->spec.gpus[i].uuid)->ledger.RemoveMember(Member(id, i));
        host_.RemoveMember(Member(id, i));
        CardState& card = *cards_.at(a->spec.gpus[i].uuid);
        card.arbiter.RemoveHolder(Member(id, i), now_ns_);
        s.phase = Session::Phase::kConnected;  // gets no frame any more
        Pump(card, now_ns_);
      }
    }
  }
  sessions_.erase(id);
  if (a == nullptr) return;
  if (a->removed && a->sessions.empty()) {
    Forget(*a);
  }
  dirty_ = true;
}

sluice_gpu_counters Node::Read(const Session& s, size_t gpu) const {
  sluice_gpu_counters out{};
  if (s.page == nullptr) return out;
  const std::string& uuid = s.allocation->spec.gpus[gpu].uuid;
  for (const sluice_gpu_counters& slot : s.page->gpu) {
    if (slot.uuid[0] == '\0') break;  // slots are taken in order; and what is not read needs no page
    if (std::strncmp(slot.uuid, uuid.c_str(), sizeof(slot.uuid)) != 0) continue;
    // 8-byte loads: the hook writes at the same time, and lies if it likes.
    uint64_t words[sizeof(out) / sizeof(uint64_t)];
    const auto* from = reinterpret_cast<const uint64_t*>(&slot);
    for (size_t i = 0; i < std::size(words); ++i) words[i] = Load(from[i]);
    std::memcpy(&out, words, sizeof(out));
    break;
  }
  SetText(out.uuid, sizeof(out.uuid), uuid);
  return out;
}

void Node::ReadPages(uint64_t now_ns) {
  launching_ = false;
  std::map<CardState*, std::map<GroupId, Bytes>> working;
  const uint64_t idle_ns = config_.idle_after_s * 1000ull * kMs;
  for (auto& [uuid, card] : cards_) card->holds.clear();
  for (auto& [id, session] : sessions_) {
    Session& s = *session;
    if (s.phase != Session::Phase::kServed) continue;
    Allocation& a = *s.allocation;
    for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
      Ledger& ledger = cards_.at(a.spec.gpus[i].uuid)->ledger;
      const sluice_gpu_counters c = Read(s, i);
      s.demand[i].See(c.live_bytes, c.plain_bytes, c.launches, now_ns);
      CardState& card = *cards_.at(a.spec.gpus[i].uuid);
      if (card.arbiter.Waits(Member(id, i))) s.demand[i].Waits(now_ns);
      const bool works = !s.demand[i].Idle(now_ns, 1000 * kMs);
      // Time that a grant paid for is charged by its release.
      const uint64_t spent = c.kernel_ns > s.kernel_ns[i] && s.kernel_ns[i] > 0 ? c.kernel_ns - s.kernel_ns[i] : 0;
      // More than the time since it was last told of any cannot have been used.
      card.arbiter.Observe(a.group, card.tokens && s.asks ? 0 : std::min(spent, now_ns - s.kernel_since[i]), works,
                           now_ns);
      if (c.kernel_ns != s.kernel_ns[i]) s.kernel_since[i] = now_ns;
      s.kernel_ns[i] = c.kernel_ns;
      if (!s.demand[i].Idle(now_ns, idle_ns)) {
        Bytes& sum = working[&card][a.group];
        sum = Add(sum, c.working_set_bytes);
        card.holds[a.group] += s.demand[i].Held();
      }
      launching_ |= !s.demand[i].Idle(now_ns, 1000 * kMs);
      const Session::Sent& sent = s.sent[i];
      ledger.Tell(Member(id, i), {c.generation >= sent.card_since ? sent.card : 0,
                                  Add(Add(c.resident_bytes, c.plain_bytes), s.beyond[i]), Wants(card, s, i, now_ns)});
      host_.Tell(Member(id, i), {c.generation >= sent.host_since ? sent.host : 0, c.host_bytes, 0});
      const Ledger::MemberView* view = ledger.Find(Member(id, i));
      if (view->debt() == 0) {
        s.debt_since_ns[i] = 0;
      } else if (s.debt_since_ns[i] == 0) {
        s.debt_since_ns[i] = now_ns;
      } else if (s.debt_since_ns[i] != UINT64_MAX && now_ns - s.debt_since_ns[i] > config_.callback_late_ms * kMs) {
        s.debt_since_ns[i] = UINT64_MAX;  // said once
        ++late_;
        AddEvent(a.spec.id, "callback late",
                 "pid " + std::to_string(s.pid) + " still holds " + settings::HumanBytes(view->debt()) + " of GPU " +
                     a.spec.gpus[i].uuid + " that were called back");
      }
    }
  }
  Weigh(working);
  for (auto& [uuid, card] : cards_) {
    if (card->turn != 0) Seat(*card);
  }
  read_ns_ = now_ns;
}

Bytes Node::Wants(const CardState& card, const Session& s, size_t gpu, uint64_t now_ns) const {
  const uint64_t idle_ns = config_.idle_after_s * 1000ull * kMs;
  if (card.turn == 0 || s.demand[gpu].Idle(now_ns, idle_ns)) return s.demand[gpu].Wanted(now_ns, idle_ns);
  const bool seated = std::ranges::find(card.seated, s.allocation->group) != card.seated.end();
  return seated ? s.demand[gpu].Held() : s.demand[gpu].Plain();
}

// The card is for the working set whose turn it is. Others stay as far as it leaves room beside what is never lent,
// first the one whose turn is longest ago: turns come round, and the token then comes back to it for nothing.
void Node::Seat(CardState& card) {
  Bytes left = card.ledger.capacity();
  std::map<GroupId, Bytes> kept;
  for (const auto& [group, a] : allocations_) {
    for (size_t i = 0; i < a->spec.gpus.size(); ++i) {
      if (a->spec.gpus[i].uuid != card.card.uuid) continue;
      kept[group] = std::min(left, Guaranteed(*a, i) / 100 * config_.ledger.floor_percent);
      left -= kept[group];
    }
  }
  const auto more = [&](GroupId group) {
    const Bytes holds = card.holds[group];
    return holds - std::min(holds, kept[group]);
  };
  left -= std::min(left, more(card.turn));
  std::erase_if(card.seated, [&](GroupId group) {
    if (group == card.turn || card.holds[group] == 0 || more(group) > left) return true;
    left -= more(group);
    return false;
  });
  card.seated.push_back(card.turn);
  card.arbiter.SetSeated(card.seated, card.seated_ns);
}

// On a grant under pressure the incoming container is to have its memory: what the others hold beyond what is left of
// the card is called back at once.
void Node::FollowTurn(CardState& card, uint64_t now_ns) {
  const GroupId turn = card.tokens && card.arbiter.pressure() ? card.arbiter.turn() : 0;
  if (turn == card.turn) return;
  if (std::ranges::find(card.seated, turn) == card.seated.end()) {
    card.seated_ns = now_ns;
    if (turn != 0 && card.turn != 0) card.turn_ns = now_ns;
  }
  card.turn = turn;
  if (turn != 0) {
    Seat(card);
  } else {
    card.seated.clear();
  }
  ReadPages(now_ns);
  dirty_ = true;
}

void Node::WatchHolders(uint64_t now_ns) {
  for (auto& [uuid, card] : cards_) {
    const auto holder = card->arbiter.holder();
    if (!holder || !card->arbiter.AnyWaiting()) continue;
    const auto it = sessions_.find(*holder / SLUICE_MAX_GPUS);
    if (it == sessions_.end() || it->second->page == nullptr) continue;
    const uint64_t beat = Load(it->second->page->heartbeat_ns);
    if (beat != 0 && beat < now_ns && now_ns - beat > kSilentNs) card->arbiter.Expire(now_ns);
  }
}

void Node::Weigh(const std::map<CardState*, std::map<GroupId, Bytes>>& working) {
  for (auto& [uuid, card] : cards_) {
    Bytes sum = 0;
    const auto it = working.find(card.get());
    if (it != working.end()) {
      for (const auto& [group, b] : it->second) sum = Add(sum, b);
    }
    const Bytes capacity = card->ledger.capacity();
    const bool exceeded = it != working.end() && it->second.size() > 1 && sum > capacity;
    // What does not fit leaves and comes back at every change: as long as the last changes took, or, before the first
    // one, as the link is known to be.
    const auto by_link = static_cast<Nanos>(static_cast<double>(sum - std::min(sum, capacity)) / kSwitchBytesPerNs);
    card->arbiter.SetPressure(exceeded, card->switch_ns > 0 ? card->switch_ns : by_link);
  }
}

void Node::WatchTokens(uint64_t now_ns) {
  for (auto& [uuid, card] : cards_) {
    const bool tokens = card->arbiter.Demanded(now_ns);
    if (tokens == card->tokens) continue;
    card->tokens = tokens;
    FollowTurn(*card, now_ns);
    AddEvent("", tokens ? "tokens demanded" : "tokens not demanded", "GPU " + uuid);
    for (auto& [id, s] : sessions_) {
      if (s->phase != Session::Phase::kServed) continue;
      for (size_t i = 0; i < s->allocation->spec.gpus.size(); ++i) {
        if (s->allocation->spec.gpus[i].uuid == uuid) SendBudget(*s, i);
      }
    }
  }
}

void Node::Token(Session& s, const sluice_frame& frame, uint64_t now_ns) {
  if (s.phase != Session::Phase::kServed) return;
  const sluice_token& t = frame.u.token;
  const Allocation& a = *s.allocation;
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    if (std::strncmp(t.uuid, a.spec.gpus[i].uuid.c_str(), sizeof(t.uuid)) != 0) continue;
    CardState& card = *cards_.at(a.spec.gpus[i].uuid);
    s.asks = true;
    if (frame.h.type == SLUICE_TOKEN_REQUEST) {
      // Asked again: it learns that somebody is there, however long others' turns take.
      if (card.arbiter.Waits(Member(s.id, i))) port_->Send(s.id, Frame(s, SLUICE_PING));
      card.arbiter.Request(a.group, Member(s.id, i), t.burst_ns, now_ns);
    } else {
      card.arbiter.Release(Member(s.id, i), t.id, t.used_ns, t.burst_ns, now_ns);
    }
    return Pump(card, now_ns);
  }
}

void Node::Pump(CardState& card, uint64_t now_ns) {
  for (const Arbiter::Action& action : card.arbiter.Advance(now_ns)) {
    const auto it = sessions_.find(action.holder / SLUICE_MAX_GPUS);
    if (it == sessions_.end() || it->second->phase != Session::Phase::kServed) continue;
    const bool grant = action.kind == Arbiter::Action::Kind::kGrant;
    sluice_frame f = Frame(*it->second, grant ? SLUICE_TOKEN_GRANT : SLUICE_TOKEN_REVOKE);
    SetText(f.u.token.uuid, sizeof(f.u.token.uuid), card.card.uuid);
    f.u.token.id = action.id;
    f.u.token.quantum_ns = action.quantum;
    f.u.token.lease_ns = action.lease;
    port_->Send(it->first, f);
  }
  FollowTurn(card, now_ns);
}

void Node::Settle() {
  if (!dirty_) return;
  dirty_ = false;
  std::set<std::pair<SessionId, size_t>> changed;
  for (auto& [uuid, card] : cards_) {
    for (const Ledger::Change& c : card->ledger.Plan())
      changed.insert({c.member / SLUICE_MAX_GPUS, c.member % SLUICE_MAX_GPUS});
  }
  for (const Ledger::Change& c : host_.Plan()) changed.insert({c.member / SLUICE_MAX_GPUS, c.member % SLUICE_MAX_GPUS});
  for (const auto& [session, gpu] : changed) {
    const auto it = sessions_.find(session);
    if (it != sessions_.end() && it->second->phase == Session::Phase::kServed) SendBudget(*it->second, gpu);
  }
}

void Node::SendBudget(Session& s, size_t gpu) {
  const Allocation& a = *s.allocation;
  const settings::Settings& e = a.effective;
  const GpuUnits& g = a.spec.gpus[gpu];
  const Ledger::MemberView* view = cards_.at(g.uuid)->ledger.Find(Member(s.id, gpu));
  const Ledger::MemberView* host = host_.Find(Member(s.id, gpu));
  if (view == nullptr || view->generation == 0 || host == nullptr) return;
  // One generation on the wire for both ledgers: it is remembered since which one each ledger's newest change is known
  // to the hook.
  Session::Sent& sent = s.sent[gpu];
  const uint64_t generation = next_generation_++;
  if (sent.card != view->generation) {
    sent.card = view->generation;
    sent.card_since = generation;
  }
  if (sent.host != host->generation) {
    sent.host = host->generation;
    sent.host_since = generation;
  }
  sluice_frame f = Frame(s, SLUICE_BUDGET);
  sluice_budget& b = f.u.budget;
  SetText(b.uuid, sizeof(b.uuid), g.uuid);
  b.budget_bytes = view->budget;
  b.guaranteed_bytes = Guaranteed(a, gpu);
  b.limit_bytes = e.memory_limit.value_or(0);
  b.host_bytes = host->budget;
  b.generation = generation;
  std::tie(b.compute_request, b.compute_limit) = Compute(a, gpu);
  b.tokens = cards_.at(g.uuid)->tokens ? 1 : 0;
  b.memory_factor = e.memory_factor.value_or(0);
  b.prefetch = static_cast<uint8_t>(e.prefetch.value_or(settings::Prefetch::kPredict));
  b.log_level = static_cast<uint8_t>(e.log_level.value_or(settings::LogLevel::kWarn));
  b.visible = static_cast<uint8_t>(e.visible.value_or(settings::Visible::kBudget));
  port_->Send(s.id, f);
}

int Node::Tick(uint64_t now_ns) {
  std::vector<SessionId> admit, silent;
  for (auto& [id, s] : sessions_) {
    if (s->phase == Session::Phase::kWaiting && now_ns >= recover_until_ns_) admit.push_back(id);
    if (s->phase == Session::Phase::kReturning && now_ns - s->opened_ns > kReturningNs) admit.push_back(id);
    if (s->phase == Session::Phase::kConnected && now_ns - s->opened_ns > kHelloNs) silent.push_back(id);
  }
  for (const SessionId id : admit) {
    Session& s = *sessions_.at(id);
    if (s.phase == Session::Phase::kWaiting) Welcome(s, now_ns);
    Admit(s, now_ns);
  }
  for (const SessionId id : silent) Refuse(*sessions_.at(id), "no HELLO within 5 s");
  now_ns_ = now_ns;
  ReadPages(now_ns);
  Vacate(now_ns);
  WatchTokens(now_ns);
  WatchHolders(now_ns);
  dirty_ = true;
  Settle();
  Nanos wake = 1000;  // milliseconds
  for (auto& [uuid, card] : cards_) {
    Pump(*card, now_ns);
    if (const auto due = card->arbiter.NextWake(now_ns))
      wake = std::min(wake, *due > now_ns ? (*due - now_ns) / kMs + 1 : 1);
  }
  const auto next = [&](int ms) { return std::min(ms, static_cast<int>(wake)); };
  Settle();  // what a grant has moved
  bool settled = true, lent = false;
  for (const auto& [uuid, card] : cards_) {
    if (card->turn_ns != 0 && card->ledger.settled() && now_ns > card->turn_ns) {
      const uint64_t took = now_ns - card->turn_ns;
      card->switch_ns = card->switch_ns == 0 ? took : (card->switch_ns * 3 + took) / 4;
      card->turn_ns = 0;
    }
    settled &= card->ledger.settled();
    lent |= card->ledger.lent() > 0;
  }
  if (sessions_.empty() && now_ns >= recover_until_ns_) return 1000;
  if (now_ns < recover_until_ns_) return 50;
  if (settled) unsettled_ns_ = 0;
  if (!settled && unsettled_ns_ == 0) unsettled_ns_ = now_ns;
  // A callback is followed closely while it is answered; who has been silent for a second may be so for long.
  const uint64_t waited = now_ns - unsettled_ns_;
  if (!settled) return next(waited < 1000 * kMs ? 10 : waited < 10000 * kMs ? 100 : 500);
  if (lent) return next(50);
  return next(launching_ ? 200 : 1000);
}

}  // namespace sluice::agent
