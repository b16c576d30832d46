#include "agent/enforcement.h"

#include <algorithm>
#include <numeric>

namespace sluice::agent {
namespace {

constexpr Nanos kMs = 1'000'000;
constexpr Nanos kLag = 300 * kMs;            // of figures about launches
constexpr Nanos kFirstTrial = 2000 * kMs;    // behind the begin of tokens
constexpr Nanos kTrialStart = 2000 * kMs;    // a trial is watched closely for so long
constexpr Nanos kTrialStep = 50 * kMs;       // between two updates meanwhile
constexpr Nanos kWantedFor = 120'000 * kMs;  // then it is measured again how much a client wants
constexpr Nanos kMaxTrialWindows = 32;       // between trials, and of patience
constexpr Nanos kMinMeasured = 500 * kMs;    // of tokens that leave time to spare
constexpr Nanos kPatienceGrowth = 8;
constexpr double kHelped = 1.1;               // times the time before: tokens helped a client
constexpr uint64_t kMaxLaunches = 1'000'000;  // between two readings; a process may claim any number

}  // namespace

Nanos Enforcement::TimeToCharge(ClientId client, Nanos estimated, uint64_t launches, Nanos window, Nanos now) {
  Account& a = accounts_[client];
  launches = std::min(launches, kMaxLaunches);
  a.launches.Charge(launches, now, window, window);
  if (on_ || a.launch_ns == 0 || now - trial_ > window) return estimated;
  a.uncharged += launches;
  if (estimated == 0) return 0;  // the estimate for these launches comes later
  const double known = static_cast<double>(a.uncharged) * a.launch_ns;
  a.uncharged = 0;
  return static_cast<Nanos>(std::min(static_cast<double>(estimated), known));
}

bool Enforcement::NoteWork(const std::vector<Worker>& workers, Nanos window, Nanos now) {
  bool begins = false;
  for (auto& [id, a] : accounts_) {
    a.works &= std::ranges::find(workers, id, &Worker::id) != workers.end();
  }
  for (const Worker& w : workers) {
    Account& a = accounts_[w.id];
    if (!a.works) {
      a.works = begins = true;
      a.seen = now;
      a.began = 0;
    }
    const Nanos since = now - a.seen;
    if (a.began == 0 && (since > window / 10 || w.running > 0 || w.usage->Used(now, since) > 0)) a.began = now;
  }
  return begins;
}

std::optional<Enforcement::Suspicion> Enforcement::Starved(const std::vector<Worker>& workers, bool equal, Nanos window,
                                                           Nanos now) const {
  const auto since = [&](const Worker& w) {
    const Account& a = accounts_.at(w.id);
    // Where the driver's time slices suit the requests, figures are waited for.
    return std::max(equal ? a.began : a.seen, off_since_);
  };
  std::map<Nanos, std::vector<double>> uses;  // of each worker, over such a time
  const auto used = [&](Nanos judged) -> const std::vector<double>& {
    std::vector<double>& use = uses[judged];
    if (!use.empty()) return use;
    for (const Worker& w : workers)
      use.push_back(static_cast<double>(w.usage->Used(now, judged) + std::min(w.running, judged)));
    const double sum = std::accumulate(use.begin(), use.end(), 0.0), most = static_cast<double>(judged);
    for (double& u : use) u *= most / std::max(sum, most);
    return use;
  };
  const auto margin = [&](double due) { return std::max(equal ? static_cast<double>(window / 100) : 0, due / 20); };
  const auto takes_from = [&](size_t other, size_t starved) {
    const Worker &o = workers[other], &s = workers[starved];
    const Nanos judged = std::min(window, now - std::max(since(o), since(s)));
    if (other == starved || judged < std::min(patience_, window)) return false;
    const Account& a = accounts_.at(s.id);
    const auto part = [&](uint32_t share) { return static_cast<double>(ShareOf(judged, share)); };
    const double most = part(o.request);
    double due = part(s.request);
    // The little that a client wants varies: the half of it is enough.
    if (now < a.wanted_until) due = std::min(due, part(a.wanted) / (a.wanted < s.request / 10 * 8 ? 2 : 1));
    const double got = used(judged)[starved];
    if (got >= due / 2 && now - off_since_ < patience_) return false;
    return got < due - margin(due) && used(judged)[other] > most + margin(most);
  };
  const auto known = [&](const Worker& w) { return !equal || accounts_.at(w.id).began != 0; };
  for (size_t i = 0; i < workers.size(); ++i) {
    for (size_t j = 0; j < workers.size(); ++j) {
      if (!known(workers[i]) || !known(workers[j]) || !takes_from(j, i)) continue;
      const Nanos judged = std::min(window, now - std::max(since(workers[i]), since(workers[j])));
      return Suspicion{workers[i].id, used(judged)[i] / static_cast<double>(judged)};
    }
  }
  return std::nullopt;
}

// Tokens leave the GPU time to spare.
void Enforcement::JudgeSpareTime(const std::vector<Worker>& workers, Nanos window, Nanos now) {
  if (!suspicion_) return;
  const Nanos measured = std::min(window, now - on_since_ - kLag);
  for (const Worker& w : workers) {
    if (w.id != suspicion_->client) continue;
    const auto used = static_cast<double>(w.usage->Used(now, measured) + std::min(w.running, measured));
    const bool helped = used > kHelped * suspicion_->part * static_cast<double>(measured);
    patience_ = helped ? kMinJudged : std::min(kPatienceGrowth * patience_, kMaxTrialWindows * window);
  }
}

void Enforcement::Begin(Nanos now) {
  on_ = true;
  on_since_ = now;
  overlapping_since_ = 0;
  suspicion_.reset();
  for (auto& [id, a] : accounts_) {
    a.launch_ns = 0;
    a.uncharged = 0;
  }
}

void Enforcement::End(Nanos now) {
  if (on_) off_since_ = now;
  on_ = false;
}

void Enforcement::BeginTrial(const std::vector<Worker>& workers, Nanos window, Nanos now) {
  const Nanos measured = std::min(window, now - on_since_ - kLag);
  for (const Worker& w : workers) {
    Account& a = accounts_.at(w.id);
    const Nanos used = w.usage->Used(now, measured) + std::min(w.running, measured);
    const Nanos launches = a.launches.Used(now, measured);
    a.wanted = static_cast<uint32_t>(std::min<Nanos>(w.request, used * 1000 / std::max<Nanos>(measured / 1000, 1)));
    a.wanted_until = now + kWantedFor;
    a.launch_ns = launches > 0 ? static_cast<double>(used) / static_cast<double>(launches) : 0;
  }
  End(now);
  trial_ = now;
  patience_ = kMinJudged;
}

bool Enforcement::Update(const std::vector<Worker>& workers, bool tokens, Nanos window, Nanos now) {
  const bool is_new = std::ranges::any_of(workers, [&](const Worker& w) { return accounts_[w.id].seen == 0; });
  if (is_new) patience_ = kMinJudged;
  const bool begins = NoteWork(workers, window, now);
  const Nanos recent = window / 10;
  Nanos busy = 0, most = 0;
  for (const Worker& w : workers) {
    busy += w.usage->Used(now, recent) + std::min(w.running, recent);
    most = std::max<Nanos>(most, w.request);
  }
  const bool equal = most * workers.size() <= kWhole + kWhole / 20;
  // A client below its request needs no token while the GPU has time to spare.
  if (workers.size() < 2 || busy < recent / 10 * (on_ ? 5 : 8)) {
    if (on_ && workers.size() >= 2 && equal && !tokens) {
      if (now - on_since_ < kLag + kMinMeasured) return true;
      JudgeSpareTime(workers, window, now);
    }
    End(now);
    overlapping_since_ = 0;
    return false;
  }
  if (on_) {
    if (tokens) on_since_ = now;
    if (begins && now - trial_ >= 2 * window) {
      wait_ = kFirstTrial;
      on_since_ = now;
    }
    if (equal && now - on_since_ >= wait_) BeginTrial(workers, window, now);
    return on_;
  }
  const bool in_trial = trial_ != 0 && now - trial_ < window;
  const auto account = [this](const Worker& w) -> Account& { return accounts_.at(w.id); };
  if (const auto suspicion = Starved(workers, equal, window, now)) {
    wait_ = in_trial ? std::clamp(2 * wait_, 2 * window, kMaxTrialWindows * window) : kFirstTrial;
    for (const Worker& w : workers) account(w).fair = false;
    Begin(now);
    suspicion_ = suspicion;
    return true;
  }
  if (in_trial && now - trial_ >= window / 10) {
    for (const Worker& w : workers) account(w).fair = true;
  }
  if (begins || busy < recent / 4 * 5) overlapping_since_ = 0;
  if (overlapping_since_ == 0) overlapping_since_ = now;
  // Estimates of clients that always work are equal, whatever the driver gives to each. So it is measured once.
  const bool unknown = !tokens && equal && now - overlapping_since_ >= window &&
                       !std::ranges::all_of(workers, [&](const Worker& w) { return account(w).fair; });
  if (unknown) {
    wait_ = kFirstTrial;
    Begin(now);
  }
  return on_;
}

std::optional<Nanos> Enforcement::NextUpdate(Nanos now) const {
  if (!on_ && trial_ != 0 && now - trial_ < kTrialStart) return now + kTrialStep;
  return std::nullopt;
}

}  // namespace sluice::agent
