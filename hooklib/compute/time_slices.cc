#include "hooklib/compute/time_slices.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::compute {
namespace {

constexpr uint64_t kUs = 1000, kMs = 1000 * kUs;
// Launches that follow one another so closely are measured together.
constexpr uint64_t kMaxGapNs = 50 * kUs;
constexpr uint32_t kMaxLaunchesTogether = 16;
constexpr uint64_t kRequestAgainNs = 2000 * kMs;  // a frame may be lost with an agent
constexpr uint32_t kSamplesPerRound = 8;          // launches a round

}  // namespace

// One or more launches that follow one another on one stream.
struct TimeSlices::Segment {
  void* stream = nullptr;
  void* begin = nullptr;
  void* end = nullptr;
  std::shared_ptr<Account> account;  // null: a sample
  uint64_t id = 0, predicted = 0, last = 0;
  uint32_t launches = 0, busy = 0;  // busy: calls between BeginLaunch and EndLaunch
  bool closed = false;
};

TimeSlices::TimeSlices(StampClock* clock, TimeSlicePort* port) : clock_(clock), port_(port) {}
TimeSlices::~TimeSlices() = default;

void TimeSlices::SetMode(Mode bit, bool on) {
  const uint32_t mode = mode_.load(std::memory_order_relaxed);
  mode_.store(on ? mode | bit : mode & ~static_cast<uint32_t>(bit), std::memory_order_relaxed);
}

const TimeSlices::KernelTime* TimeSlices::Find(uint64_t id) const {
  const KernelTime& k = kernel_times_[(id ^ id >> 17) % kernel_times_.size()];
  return k.id == id && k.seen > 0 ? &k : nullptr;
}

uint64_t TimeSlices::Predict(uint64_t id) const {
  if (const KernelTime* k = Find(id)) return k->ns;
  // Not seen yet: a few of them fill a quantum, so that long kernels are met one by one.
  return std::max(average_ns_, grant_ ? grant_->quantum / 8 : 0);
}

bool TimeSlices::MeasuresAlone(uint64_t id) {
  KernelTime& k = kernel_times_[(id ^ id >> 17) % kernel_times_.size()];
  return k.id != id || k.seen < 2 || ++k.uses % 32 == 0;
}

void TimeSlices::Learn(uint64_t id, uint64_t ns) {
  average_ns_ = (average_ns_ * 63 + ns) / 64;
  KernelTime& k = kernel_times_[(id ^ id >> 17) % kernel_times_.size()];
  if (k.id != id) k = {id, ns, 0, 0};
  k.ns = k.seen == 0 ? ns : (k.ns * 3 + ns) / 4;
  ++k.seen;
}

TimeSlices::Launch TimeSlices::Enter(uint64_t id) {
  Launch launch;
  launch.id = id;
  MutexLock lock(mutex_);
  if ((mode_.load(std::memory_order_relaxed) & kDemanded) == 0) {
    if (sample_left_ == 0) return launch;
    if (--sample_left_ == 0) SetMode(kSampling, false);
    launch.is_sample = true;
    return launch;
  }
  if (waiting_++ == 0) waiting_since_ = clock_->Now();
  for (;;) {
    if ((mode_.load(std::memory_order_relaxed) & kDemanded) == 0) break;
    const uint64_t now = clock_->Now();
    if (grant_ && now >= grant_->until) VoidGrant();
    if (grant_) {
      if (grant_->used + grant_->pending >= grant_->quantum) CollectFinished(now);
      if (grant_->used + grant_->pending < grant_->quantum) break;
      if (grant_->open == 0 && admitted_ == 0) {
        ReleaseGrant(false);
        continue;
      }
      // Queued launches have to end first. The lease bounds this: they may wait for the next step of this very thread.
      const uint64_t pause_ns = std::clamp(grant_->pending / 8, 20 * kUs, 500 * kUs);
      MutexUnlock unlocked(mutex_);
      clock_->Sleep(pause_ns);
      continue;
    }
    CollectFinished(now);  // of a void grant
    if (!requested_ || now - requested_at_ > kRequestAgainNs) {
      requested_ = port_->Request(burst_ns_ > 0 ? burst_ns_ : last_burst_ns_);
      requested_at_ = now;
      if (!requested_) break;  // no arbiter: the program goes on
    }
    changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
  }
  --waiting_;
  launch.is_admitted = true;
  ++admitted_;
  last_busy_ = clock_->Now();
  return launch;
}

void TimeSlices::BeginLaunch(Launch* launch, void* stream, bool apart) {
  if (!launch->is_admitted && !launch->is_sample) return;
  std::shared_ptr<Account> account;
  {
    MutexLock lock(mutex_);
    const uint64_t now = clock_->Now();
    if (now - collected_at_ > 20 * kUs) CollectFinished(now);
    if (!launch->is_sample) {
      account = grant_;
      if (!account) return;  // no longer demanded
    }
    const bool alone = launch->is_sample || apart || MeasuresAlone(launch->id);
    for (const auto& s : segments_) {
      if (s->stream != stream || s->closed) continue;
      if (!alone && s->account == account && s->launches < kMaxLaunchesTogether && s->begin != nullptr &&
          now - s->last < kMaxGapNs) {
        const uint64_t ns = Predict(launch->id);
        s->predicted += ns;
        account->pending += ns;
        ++s->busy;
        launch->segment = s.get();
        return;
      }
      s->closed = true;
    }
    auto made = std::make_unique<Segment>();
    made->stream = stream;
    made->account = account;
    made->id = launch->id;
    made->closed = alone;
    made->busy = 1;
    made->last = now;
    if (account) {
      made->predicted = Predict(launch->id);
      account->pending += made->predicted;
      ++account->open;
    }
    launch->segment = made.get();
    segments_.push_back(std::move(made));
  }
  void* const stamp = clock_->Record(stream, nullptr);
  MutexLock lock(mutex_);
  launch->segment->begin = stamp;
}

void TimeSlices::EndLaunch(Launch* launch, void* stream) {
  if (!launch->is_admitted && !launch->is_sample) return;
  Segment* s = launch->segment;
  void *end = nullptr, *again = nullptr;
  bool stamped = false;
  if (s != nullptr) {
    MutexLock lock(mutex_);
    stamped = s->begin != nullptr;
    std::swap(again, s->end);  // another thread that ends on this stream at this moment sets one of its own
  }
  if (stamped) end = clock_->Record(stream, again);
  MutexLock lock(mutex_);
  if (launch->is_admitted) --admitted_;
  launch->is_admitted = launch->is_sample = false;
  launch->segment = nullptr;
  const uint64_t now = clock_->Now();
  last_busy_ = now;
  if (s == nullptr) return;
  if (end != nullptr) {
    if (s->end != nullptr) clock_->Free(s->end);
    s->end = end;
  }
  ++s->launches;
  --s->busy;
  s->last = now;
  if (s->busy == 0 && (s->begin == nullptr || s->end == nullptr)) CloseSegment(*s);  // could not be stamped
}

// Enters the slices that are over. One question a busy stream, whatever is queued on it.
void TimeSlices::CollectFinished(uint64_t now) {
  collected_at_ = now;
  void* busy[16];
  size_t n = 0;
  for (size_t i = 0; i < segments_.size();) {
    Segment& s = *segments_[i];
    const bool known_busy = std::find(busy, busy + n, s.stream) != busy + n;
    const bool ready = s.busy == 0 && (s.closed || now - s.last > kMaxGapNs);
    if (known_busy || !ready || !clock_->Reached(s.end)) {
      if (!known_busy && n < std::size(busy)) busy[n++] = s.stream;
      ++i;
      continue;
    }
    CloseSegment(s);
  }
  std::erase_if(void_accounts_, [this](const std::shared_ptr<Account>& account) {
    if (account->open > 0) return false;
    port_->Release(account->id, account->used, 0, account->estimated);
    FreeBase(account);
    return true;
  });
}

// `s` is over, and gone afterwards.
void TimeSlices::CloseSegment(Segment& s) {
  int64_t length = 0;
  const bool is_measured =
      s.begin != nullptr && s.end != nullptr && clock_->Elapsed(s.begin, s.end, &length) && length >= 0;
  const uint64_t ns = is_measured ? static_cast<uint64_t>(length) : s.predicted;
  if (s.launches == 1 && is_measured) Learn(s.id, ns);
  if (!s.account) {
    sample_sum_ += is_measured ? ns : 0;
    sample_count_ += is_measured ? 1 : 0;
  } else {
    Account& account = *s.account;
    uint64_t add = ns;
    int64_t from = 0;
    if (!is_measured) {
      account.estimated = true;
    } else if (account.base == nullptr) {
      if (!account.is_over) account.base = std::exchange(s.begin, nullptr);
      account.covered = length;
    } else if (clock_->Elapsed(account.base, s.begin, &from)) {
      // Streams of one process run beside each other: time counts once.
      const int64_t to = from + length, start = std::max(from, account.covered);
      add = to > start ? static_cast<uint64_t>(to - start) : 0;
      account.covered = std::max(account.covered, to);
    }
    account.used += add;
    account.pending -= std::min(account.pending, s.predicted);
    --account.open;
    (is_measured ? measured_ns_ : estimated_ns_) += add;
  }
  if (s.begin != nullptr) clock_->Free(s.begin);
  if (s.end != nullptr) clock_->Free(s.end);
  std::erase_if(segments_, [&s](const auto& other) { return other.get() == &s; });
}

void TimeSlices::FreeBase(const std::shared_ptr<Account>& account) {
  if (account->base != nullptr) clock_->Free(account->base);
  account->base = nullptr;
  account->is_over = true;
}

void TimeSlices::ReleaseGrant(bool burst_over) {
  const std::shared_ptr<Account> account = std::exchange(grant_, nullptr);
  burst_ns_ += account->used;
  last_burst_ns_ = burst_ns_;
  // A process that goes on requests before it releases, so that the arbiter can choose between it and waiting ones.
  requested_ = !burst_over && port_->Request(burst_ns_);
  requested_at_ = clock_->Now();
  port_->Release(account->id, account->used, burst_ns_, account->estimated);
  if (burst_over) burst_ns_ = 0;
  FreeBase(account);
}

void TimeSlices::VoidGrant() {
  const std::shared_ptr<Account> account = std::exchange(grant_, nullptr);
  burst_ns_ += account->used;
  void_accounts_.push_back(account);  // its use is reported once its kernels are over
  requested_ = false;
}

uint64_t TimeSlices::IdleTimeout() const { return std::clamp(grant_->quantum / 64, 1 * kMs, 100 * kMs); }

uint64_t TimeSlices::Tick() {
  MutexLock lock(mutex_);
  const uint64_t now = clock_->Now();
  CollectFinished(now);
  if (!grant_) return segments_.empty() ? 0 : void_accounts_.empty() ? 100 * kMs : 2 * kMs;
  if (now >= grant_->until) {
    VoidGrant();
    return 2 * kMs;
  }
  // Idle since the last work that was seen: the GPU may have been busy for long with one launch.
  if (grant_->open > 0 || admitted_ > 0 || waiting_ > 0) last_busy_ = now;
  if (now - std::max(last_busy_, grant_->since) >= IdleTimeout()) {
    ReleaseGrant(true);
    return 0;
  }
  return std::clamp(IdleTimeout() / 2, 500 * kUs, 20 * kMs);
}

void TimeSlices::SetDemanded(bool tokens) {
  MutexLock lock(mutex_);
  SetMode(kDemanded, tokens);
  sample_left_ = 0;
  SetMode(kSampling, false);
  if (!tokens) {
    if (grant_) ReleaseGrant(true);
    requested_ = false;
  }
  changed_.NotifyAll();
}

void TimeSlices::NoteGranted(uint64_t id, uint64_t quantum_ns, uint64_t lease_ns) {
  MutexLock lock(mutex_);
  const uint64_t now = clock_->Now();
  if (grant_) VoidGrant();
  if ((mode_.load(std::memory_order_relaxed) & kDemanded) == 0) {  // not needed any more
    port_->Release(id, 0, 0, false);
    return;
  }
  grant_ = std::make_shared<Account>();
  grant_->id = id;
  grant_->quantum = quantum_ns;
  grant_->since = waiting_since_ = now;
  grant_->until = now + lease_ns;
  changed_.NotifyAll();
}

void TimeSlices::NoteRevoked(uint64_t id) {
  MutexLock lock(mutex_);
  if (grant_ && grant_->id == id) VoidGrant();
}

void TimeSlices::GiveUp() {
  MutexLock lock(mutex_);
  if (grant_) VoidGrant();
}

void TimeSlices::NoteAgentLost() {
  MutexLock lock(mutex_);
  SetMode(kDemanded, false);
  if (grant_) FreeBase(std::exchange(grant_, nullptr));
  for (const auto& account : void_accounts_) FreeBase(account);
  void_accounts_.clear();
  requested_ = false;
  changed_.NotifyAll();
}

void TimeSlices::BeginSampling(uint64_t launches) {
  MutexLock lock(mutex_);
  const uint64_t now = clock_->Now();
  if ((mode_.load(std::memory_order_relaxed) & kDemanded) != 0) {  // measured, not estimated
    sample_launches_ = launches;
    sampled_at_ = now;
    sample_sum_ = sample_count_ = 0;
    return;
  }
  const uint64_t made = launches - std::min(launches, sample_launches_);
  if (made == 0) {
    sampled_at_ = now;
    return;
  }
  if (sample_count_ > 0) {
    // More than the time that passed cannot have been used.
    estimated_ns_ += std::min(sample_sum_ / sample_count_ * made, now - sampled_at_);
    sample_launches_ = launches;
    sampled_at_ = now;
    sample_sum_ = sample_count_ = 0;
  }
  sample_left_ = kSamplesPerRound;
  SetMode(kSampling, true);
}

bool TimeSlices::holding() {
  MutexLock lock(mutex_);
  return grant_ != nullptr;
}

uint64_t TimeSlices::WaitedNs() {
  MutexLock lock(mutex_);
  return waiting_ > 0 && !grant_ ? clock_->Now() - waiting_since_ : 0;
}

TimeSlices::Used TimeSlices::used() {
  MutexLock lock(mutex_);
  return {measured_ns_ + estimated_ns_, estimated_ns_};
}

void TimeSlices::DropStamps(const void* context) {
  MutexLock lock(mutex_);
  const auto drop = [&](void*& stamp) {
    if (stamp == nullptr || !clock_->BelongsTo(stamp, context)) return false;
    clock_->Free(std::exchange(stamp, nullptr));
    return true;
  };
  for (size_t i = 0; i < segments_.size();) {
    Segment& s = *segments_[i];
    const bool begin = drop(s.begin), end = drop(s.end);
    if (s.busy == 0 && (begin || end)) {
      CloseSegment(s);
    } else {
      ++i;
    }
  }
  if (grant_) drop(grant_->base);
  for (const auto& account : void_accounts_) drop(account->base);
}

}  // namespace sluice::compute
