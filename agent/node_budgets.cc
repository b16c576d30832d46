// Node: reads the pages, plans the ledgers, sends budgets.
#include <algorithm>
#include <climits>
#include <cstring>
#include <tuple>
#include <utility>

#include "agent/node_private.h"
#include "common/counters_page.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kHelloNs = 5000 * kMs;  // a connection without HELLO is closed then
// Of budgets that are sent without other work between them, and of those of one group. A thousand take the time of
// several tokens of another tenant.
constexpr int kBudgetsAtOnce = 32, kBudgetsInTurn = 8;
// Of pages that are read without other work between them: some 20 us.
constexpr int kPagesAtOnce = 64;

}  // namespace

sluice_gpu_counters Node::Read(const Session& s, size_t gpu) const {
  sluice_gpu_counters out{};
  if (s.page == nullptr) return out;
  const std::string& uuid = s.allocation->spec.gpus[gpu].uuid;
  for (size_t i = 0; i < SLUICE_MAX_GPUS; ++i) {
    const sluice_gpu_slot& slot = s.page->gpu[i];
    if (slot.uuid[0] == '\0') break;  // slots are taken in order, and an unread part of the page needs no memory
    if (std::strncmp(slot.uuid, uuid.c_str(), sizeof(slot.uuid)) != 0) continue;
    out = LoadCounters(*s.page, i);
    break;
  }
  SetText(out.uuid, sizeof(out.uuid), uuid);
  return out;
}

void Node::BeginReading(Reading& reading) const {
  reading = {};
  reading.active = true;
  reading.last = sessions_.empty() ? 0 : sessions_.rbegin()->first;
}

bool Node::ReadSlice(Reading& reading, int pages, uint64_t now_ns) {
  auto it = sessions_.lower_bound(reading.next);
  for (; it != sessions_.end() && it->first <= reading.last && pages > 0; ++it) {
    if (it->second->phase != Session::Phase::kServed) continue;
    ReadPage(*it->second, reading, now_ns);
    --pages;
  }
  if (it == sessions_.end() || it->first > reading.last) return true;
  reading.next = it->first;
  return false;
}

void Node::ReadPage(Session& s, Reading& reading, uint64_t now_ns) {
  const Allocation& a = *s.allocation;
  const uint64_t idle_ns = config_.idle_after_s * 1000ull * kMs;
  for (size_t i = 0; i < a.spec.gpus.size(); ++i) {
    CardState& card = *cards_.at(a.spec.gpus[i].uuid);
    const sluice_gpu_counters c = Read(s, i);
    Demand& demand = s.demand[i];
    demand.Observe(c.live_bytes, c.unmanaged_bytes, c.launches, now_ns);
    if (card.arbiter.IsWaiting(Member(s.id, i)))
      IsOpportunistic(a) ? demand.SetHeld(now_ns) : demand.SetWaiting(now_ns);
    const bool works = !demand.Idle(now_ns, 1000 * kMs);
    // The release of a grant charges the time under it. Other time is charged here, at most the time since the last
    // charge.
    const uint64_t spent = c.kernel_ns > s.kernel_ns[i] && s.kernel_ns[i] > 0 ? c.kernel_ns - s.kernel_ns[i] : 0;
    card.arbiter.Observe(a.group,
                         NeedsTokens(a, card) && s.uses_tokens ? 0 : std::min(spent, now_ns - s.kernel_since[i]),
                         c.launches - std::min(c.launches, s.launches[i]), works, now_ns);
    s.launches[i] = c.launches;
    NoteUse(s, i, c, now_ns);
    CountLink(s, i, c);
    if (c.kernel_ns != s.kernel_ns[i]) s.kernel_since[i] = now_ns;
    s.kernel_ns[i] = c.kernel_ns;
    // Opportunistic working sets press no one: they leave.
    if (!demand.Idle(now_ns, idle_ns) && !IsOpportunistic(a) && !IsParked(a)) {
      Bytes& sum = reading.working[&card][a.group];
      sum = Sum(sum, c.working_set_bytes);
      reading.held[&card][a.group] += demand.Held();
    }
    s.reports_use |= c.touched_bytes != 0;
    if (s.reports_use) {
      DayPeak::Sample& sample = reading.samples[{a.group, i}];
      sample.touched = Sum(sample.touched, c.touched_bytes);
      sample.lives |= Sum(c.live_bytes, c.unmanaged_bytes) != 0;
      sample.works |= works;
    }
    reading.launching |= works;
    const Session::SentGenerations& sent = s.sent[i];
    card.ledger.Update(Member(s.id, i),
                       {c.generation >= sent.card_since ? sent.card : 0,
                        Sum(Sum(c.resident_bytes, c.unmanaged_bytes), s.uncounted[i]), Wanted(card, s, i, now_ns)});
    host_.Update(Member(s.id, i), {c.generation >= sent.host_since ? sent.host : 0, c.host_bytes, 0});
    CheckOverdue(s, i, card.ledger.Find(Member(s.id, i))->overdue(), now_ns);
  }
}

void Node::EndReading(Reading& reading) {
  reading.active = false;
  launching_ = reading.launching;
  for (auto& [uuid, card] : cards_) card->held = std::move(reading.held[card.get()]);
  SetPressure(reading.working);
  for (auto& [uuid, card] : cards_) {
    if (card->favored != 0) ChooseResident(*card);
  }
}

void Node::ReadPages(uint64_t now_ns) {
  Reading all;
  BeginReading(all);
  ReadSlice(all, INT_MAX, now_ns);
  EndReading(all);
}

void Node::CheckOverdue(Session& s, size_t gpu, Bytes overdue, uint64_t now_ns) {
  uint64_t& since = s.overdue_since_ns[gpu];
  if (overdue == 0) {
    since = 0;
  } else if (since == 0) {
    since = now_ns;
  } else if (since != UINT64_MAX && !IsParked(*s.allocation) && now_ns - since > config_.reclaim_late_ms * kMs) {
    since = UINT64_MAX;  // reported once
    ++late_;
    AddEvent(s.allocation->spec.id, "reclaim late",
             "pid " + std::to_string(s.pid) + " still holds " + settings::HumanBytes(overdue) + " of GPU " +
                 s.allocation->spec.gpus[gpu].uuid + " that were reclaimed");
  }
}

Bytes Node::Wanted(const CardState& card, const Session& s, size_t gpu, uint64_t now_ns) const {
  const uint64_t idle_ns = config_.idle_after_s * 1000ull * kMs;
  if (IsParked(*s.allocation)) return s.demand[gpu].Unmanaged();
  if (IsOpportunistic(*s.allocation)) {
    // The minimum is asked for from its start on: its launches are held until it has that.
    return std::max(s.demand[gpu].Wanted(now_ns, idle_ns), card.ledger.opportunistic_min());
  }
  if (card.favored == 0 || s.demand[gpu].Idle(now_ns, idle_ns)) return s.demand[gpu].Wanted(now_ns, idle_ns);
  const bool resident = std::ranges::find(card.resident, s.allocation->group) != card.resident.end();
  return resident ? s.demand[gpu].Held() : s.demand[gpu].Unmanaged();
}

void Node::Settle() {
  if (!dirty_) return;
  dirty_ = false;
  const auto add = [&](const Ledger::Change& c) { MarkDue(c.member / SLUICE_MAX_GPUS, c.member % SLUICE_MAX_GPUS); };
  for (auto& [uuid, card] : cards_) std::ranges::for_each(card->ledger.Plan(), add);
  std::ranges::for_each(host_.Plan(), add);
  HoldOpportunistic(now_ns_);
  SendDue();
}

void Node::MarkDue(SessionId session, size_t gpu) {
  const auto it = sessions_.find(session);
  if (it != sessions_.end() && it->second->allocation != nullptr)
    due_[it->second->allocation->group].insert({session, gpu});
}

void Node::SendDue() {
  int left = kBudgetsAtOnce;
  while (left > 0 && !due_.empty()) {
    auto turn = due_.upper_bound(last_served_);
    if (turn == due_.end()) turn = due_.begin();
    last_served_ = turn->first;
    for (int n = 0; n < kBudgetsInTurn && left > 0 && !turn->second.empty(); ++n, --left) {
      const auto [session, gpu] = *turn->second.begin();
      turn->second.erase(turn->second.begin());
      const auto it = sessions_.find(session);
      if (it != sessions_.end() && it->second->phase == Session::Phase::kServed) SendBudget(*it->second, gpu);
    }
    if (turn->second.empty()) due_.erase(turn);
  }
  if (!due_.empty()) port_->SendSoon();
}

void Node::SendIfDue(Session& s, size_t gpu) {
  const auto turn = due_.find(s.allocation->group);
  if (turn == due_.end() || turn->second.erase({s.id, gpu}) == 0) return;
  if (turn->second.empty()) due_.erase(turn);
  SendBudget(s, gpu);
}

void Node::SendBudget(Session& s, size_t gpu) {
  const Allocation& a = *s.allocation;
  const GpuUnits& g = a.spec.gpus[gpu];
  const Ledger::MemberView* view = cards_.at(g.uuid)->ledger.Find(Member(s.id, gpu));
  const Ledger::MemberView* host = host_.Find(Member(s.id, gpu));
  if (view == nullptr || view->generation == 0 || host == nullptr) return;
  // Both ledgers share one generation on the wire. Each remembers the generation that carried its newest change.
  Session::SentGenerations& sent = s.sent[gpu];
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
  // Bytes that the driver shows and the hook does not count take the place of some of the budget.
  b.budget_bytes =
      view->budget > s.deducted[gpu] ? view->budget - s.deducted[gpu] : std::min(view->budget, config_.ledger.step);
  b.guaranteed_bytes = Size(a, gpu);
  b.limit_bytes = a.effective.memory_limit.value_or(0);
  b.host_bytes = host->budget;
  b.generation = generation;
  std::tie(b.compute_request, b.compute_limit) = Compute(a, gpu);
  b.tokens = NeedsTokens(a, *cards_.at(g.uuid)) ? 1 : 0;
  b.parked = IsParked(a) ? 1 : 0;
  if (b.parked != 0 && s.parked[gpu].since == 0) s.parked[gpu].since = generation;
  b.link_bytes_per_s = s.link[gpu].sent_per_s = LinkRate(s, gpu);
  settings::FillBudget(a.effective, b);
  FillLease(s, gpu, &b);
  port_->Send(s.id, f);
}

void Node::AdmitWaiting(uint64_t now_ns) {
  std::vector<SessionId> admit, silent;
  for (auto& [id, s] : sessions_) {
    if (s->phase == Session::Phase::kWaiting && now_ns >= recover_until_ns_) admit.push_back(id);
    if (s->phase == Session::Phase::kReturning && now_ns - s->opened_ns > kReturningNs) admit.push_back(id);
    if (s->phase == Session::Phase::kConnected && now_ns - s->opened_ns > kHelloNs) silent.push_back(id);
  }
  for (const SessionId id : admit) {
    Session& s = *sessions_.at(id);
    if (s.phase == Session::Phase::kWaiting) Welcome(s);
    Admit(s, now_ns);
  }
  for (const SessionId id : silent) Refuse(*sessions_.at(id), "no HELLO within 5 s");
}

int Node::Tick(uint64_t now_ns) {
  now_ns_ = now_ns;
  if (!reading_.active) {
    AdmitWaiting(now_ns);
    BeginReading(reading_);
  }
  if (!ReadSlice(reading_, kPagesAtOnce, now_ns)) return 0;
  EndReading(reading_);
  ObserveWorkingSets(reading_, now_ns);
  UpdateParks(now_ns);
  AnswerWaiting(now_ns);
  Vacate(now_ns);
  HoldOpportunistic(now_ns);
  UpdateDemand(now_ns);
  ShareLinks(now_ns);
  ExpireSilentHolders(now_ns);
  dirty_ = true;
  Settle();
  Nanos wake = 1000;  // milliseconds
  for (auto& [uuid, card] : cards_) {
    Pump(*card, now_ns);
    if (const auto due = card->arbiter.NextWake(now_ns))
      wake = std::min(wake, *due > now_ns ? (*due - now_ns) / kMs + 1 : 1);
  }
  const auto next = [&](int ms) { return std::min(ms, static_cast<int>(wake)); };
  Settle();  // the changes of grants
  bool settled = true, lent = false;
  for (const auto& [uuid, card] : cards_) {
    if (card->switch_began_ns != 0 && card->ledger.settled() && now_ns > card->switch_began_ns) {
      const uint64_t took = now_ns - card->switch_began_ns;
      card->switch_ns = card->switch_ns == 0 ? took : (card->switch_ns * 3 + took) / 4;
      card->switch_began_ns = 0;
    }
    settled &= card->ledger.settled();
    lent |= card->ledger.lent() > 0;
  }
  if (sessions_.empty() && now_ns >= recover_until_ns_) return 1000;
  if (now_ns < recover_until_ns_) return 50;
  settled &=
      std::ranges::none_of(allocations_, [](const auto& a) { return a.second->park.state == Park::State::kParking; });
  if (settled) unsettled_ns_ = 0;
  if (!settled && unsettled_ns_ == 0) unsettled_ns_ = now_ns;
  // The pages are read often at first. A holder that has not answered for a second may stay silent for long.
  const uint64_t waited = now_ns - unsettled_ns_;
  if (!settled) return next(waited < 1000 * kMs ? 10 : waited < 10000 * kMs ? 100 : 500);
  if (lent) return next(50);
  return next(launching_ ? 200 : 1000);
}

}  // namespace sluice::agent
