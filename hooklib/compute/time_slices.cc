#include "hooklib/compute/time_slices.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice::compute {
namespace {

constexpr uint64_t kUs = 1000, kMs = 1000 * kUs;
// Launches that follow one another so closely are measured together.
constexpr uint64_t kGap = 50 * kUs;
constexpr uint32_t kTogether = 16;
constexpr uint64_t kAskAgain = 2000 * kMs;  // a frame may be lost with an agent
constexpr uint32_t kSamples = 8;            // launches a round

}  // namespace

// One or more launches that follow one another on one stream.
struct TimeSlices::Segment {
  void* stream = nullptr;
  void* begin = nullptr;
  void* end = nullptr;
  std::shared_ptr<Book> book;  // null: a sample
  uint64_t what = 0, predicted = 0, last = 0;
  uint32_t launches = 0, busy = 0;  // busy: between Begin and End of somebody
  bool closed = false;
};

TimeSlices::TimeSlices(StampClock* clock, TimeSlicePort* port) : clock_(clock), port_(port) {}
TimeSlices::~TimeSlices() = default;

void TimeSlices::SetMode(Mode bit, bool on) {
  const uint32_t mode = mode_.load(std::memory_order_relaxed);
  mode_.store(on ? mode | bit : mode & ~static_cast<uint32_t>(bit), std::memory_order_relaxed);
}

const TimeSlices::Known* TimeSlices::Find(uint64_t what) const {
  const Known& k = known_[(what ^ what >> 17) % known_.size()];
  return k.what == what && k.seen > 0 ? &k : nullptr;
}

uint64_t TimeSlices::Predict(uint64_t what) const {
  if (const Known* k = Find(what)) return k->ns;
  // Not seen yet: a few of them fill a quantum, so that what turns out to be long is met one by one.
  return std::max(average_, grant_ ? grant_->quantum / 8 : 0);
}

bool TimeSlices::Alone(uint64_t what) {
  Known& k = known_[(what ^ what >> 17) % known_.size()];
  return k.what != what || k.seen < 2 || ++k.uses % 32 == 0;
}

void TimeSlices::Learn(uint64_t what, uint64_t ns) {
  average_ = (average_ * 63 + ns) / 64;
  Known& k = known_[(what ^ what >> 17) % known_.size()];
  if (k.what != what) k = {what, ns, 0, 0};
  k.ns = k.seen == 0 ? ns : (k.ns * 3 + ns) / 4;
  ++k.seen;
}

TimeSlices::Launch TimeSlices::Enter(uint64_t what) {
  Launch launch;
  launch.what = what;
  std::unique_lock lock(mutex_);
  if ((mode_.load(std::memory_order_relaxed) & kDemanded) == 0) {
    if (sample_left_ == 0) return launch;
    if (--sample_left_ == 0) SetMode(kSampling, false);
    launch.sample = true;
    return launch;
  }
  ++waiting_;
  for (;;) {
    if ((mode_.load(std::memory_order_relaxed) & kDemanded) == 0) break;
    const uint64_t now = clock_->Now();
    if (grant_ && now >= grant_->until) Drop();
    if (grant_) {
      if (grant_->used + grant_->pending >= grant_->quantum) Harvest(now);
      if (grant_->used + grant_->pending < grant_->quantum) break;
      if (grant_->open == 0 && under_way_ == 0) {
        GiveBack(false);
        continue;
      }
      // What is queued has to end first. The lease bounds this: it may be waiting for what this very thread does next.
      const uint64_t nap = std::clamp(grant_->pending / 8, 20 * kUs, 500 * kUs);
      lock.unlock();
      clock_->Sleep(nap);
      lock.lock();
      continue;
    }
    Harvest(now);  // of a turn that became void
    if (!asked_ || now - asked_at_ > kAskAgain) {
      asked_ = port_->Ask(burst_ > 0 ? burst_ : last_burst_);
      asked_at_ = now;
      if (!asked_) break;  // nobody arbitrates: the program goes on
    }
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  --waiting_;
  launch.in = true;
  ++under_way_;
  last_busy_ = clock_->Now();
  return launch;
}

void TimeSlices::Begin(Launch* launch, void* stream, bool apart) {
  if (!launch->in && !launch->sample) return;
  std::shared_ptr<Book> book;
  {
    std::lock_guard lock(mutex_);
    const uint64_t now = clock_->Now();
    if (now - harvested_ > 20 * kUs) Harvest(now);
    if (!launch->sample) {
      book = grant_;
      if (!book) return;  // no longer demanded
    }
    const bool alone = launch->sample || apart || Alone(launch->what);
    for (const auto& s : segments_) {
      if (s->stream != stream || s->closed) continue;
      if (!alone && s->book == book && s->launches < kTogether && s->begin != nullptr && now - s->last < kGap) {
        const uint64_t ns = Predict(launch->what);
        s->predicted += ns;
        book->pending += ns;
        ++s->busy;
        launch->segment = s.get();
        return;
      }
      s->closed = true;
    }
    auto made = std::make_unique<Segment>();
    made->stream = stream;
    made->book = book;
    made->what = launch->what;
    made->closed = alone;
    made->busy = 1;
    made->last = now;
    if (book) {
      made->predicted = Predict(launch->what);
      book->pending += made->predicted;
      ++book->open;
    }
    launch->segment = made.get();
    segments_.push_back(std::move(made));
  }
  void* const stamp = clock_->Set(stream, nullptr);
  std::lock_guard lock(mutex_);
  launch->segment->begin = stamp;
}

void TimeSlices::End(Launch* launch, void* stream) {
  if (!launch->in && !launch->sample) return;
  Segment* s = launch->segment;
  void *end = nullptr, *again = nullptr;
  bool stamped = false;
  if (s != nullptr) {
    std::lock_guard lock(mutex_);
    stamped = s->begin != nullptr;
    std::swap(again, s->end);  // another thread that ends on this stream at this moment sets one of its own
  }
  if (stamped) end = clock_->Set(stream, again);
  std::lock_guard lock(mutex_);
  if (launch->in) --under_way_;
  launch->in = launch->sample = false;
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
  if (s->busy == 0 && (s->begin == nullptr || s->end == nullptr)) Finish(*s);  // could not be stamped
}

// Enters what is over. One question a busy stream, whatever is queued on it.
void TimeSlices::Harvest(uint64_t now) {
  harvested_ = now;
  void* busy[16];
  size_t n = 0;
  for (size_t i = 0; i < segments_.size();) {
    Segment& s = *segments_[i];
    const bool known_busy = std::find(busy, busy + n, s.stream) != busy + n;
    const bool ready = s.busy == 0 && (s.closed || now - s.last > kGap);
    if (known_busy || !ready || !clock_->Reached(s.end)) {
      if (!known_busy && n < std::size(busy)) busy[n++] = s.stream;
      ++i;
      continue;
    }
    Finish(s);
  }
  std::erase_if(late_, [this](const std::shared_ptr<Book>& book) {
    if (book->open > 0) return false;
    port_->GiveBack(book->id, book->used, 0, book->estimated);
    Settle(book);
    return true;
  });
}

// `s` is over, and gone afterwards.
void TimeSlices::Finish(Segment& s) {
  int64_t length = 0;
  const bool told = s.begin != nullptr && s.end != nullptr && clock_->Between(s.begin, s.end, &length) && length >= 0;
  const uint64_t ns = told ? static_cast<uint64_t>(length) : s.predicted;
  if (s.launches == 1 && told) Learn(s.what, ns);
  if (!s.book) {
    sample_sum_ += told ? ns : 0;
    sample_count_ += told ? 1 : 0;
  } else {
    Book& book = *s.book;
    uint64_t add = ns;
    int64_t from = 0;
    if (!told) {
      book.estimated = true;
    } else if (book.base == nullptr) {
      book.base = std::exchange(s.begin, nullptr);
      book.covered = length;
    } else if (clock_->Between(book.base, s.begin, &from)) {
      // Streams of one process run beside each other: time counts once.
      const int64_t to = from + length, start = std::max(from, book.covered);
      add = to > start ? static_cast<uint64_t>(to - start) : 0;
      book.covered = std::max(book.covered, to);
    }
    book.used += add;
    book.pending -= std::min(book.pending, s.predicted);
    --book.open;
    (told ? measured_ : estimated_) += add;
  }
  if (s.begin != nullptr) clock_->Free(s.begin);
  if (s.end != nullptr) clock_->Free(s.end);
  std::erase_if(segments_, [&s](const auto& other) { return other.get() == &s; });
}

void TimeSlices::Settle(const std::shared_ptr<Book>& book) {
  if (book->base != nullptr) clock_->Free(book->base);
  book->base = nullptr;
}

void TimeSlices::GiveBack(bool burst_over) {
  const std::shared_ptr<Book> book = std::exchange(grant_, nullptr);
  burst_ += book->used;
  last_burst_ = burst_;
  // Who goes on asks before it gives back, so that the arbiter has the choice between it and those who wait.
  asked_ = !burst_over && port_->Ask(burst_);
  asked_at_ = clock_->Now();
  port_->GiveBack(book->id, book->used, burst_, book->estimated);
  if (burst_over) burst_ = 0;
  Settle(book);
}

void TimeSlices::Drop() {
  const std::shared_ptr<Book> book = std::exchange(grant_, nullptr);
  burst_ += book->used;
  late_.push_back(book);  // what still runs is told when it is over
  asked_ = false;
}

uint64_t TimeSlices::Idle() const { return std::clamp(grant_->quantum / 64, 1 * kMs, 100 * kMs); }

uint64_t TimeSlices::Tick() {
  std::lock_guard lock(mutex_);
  const uint64_t now = clock_->Now();
  Harvest(now);
  if (!grant_) return segments_.empty() ? 0 : late_.empty() ? 100 * kMs : 2 * kMs;
  if (now >= grant_->until) {
    Drop();
    return 2 * kMs;
  }
  // Idle since it was last seen at work: the card may have been busy for long with what one launch began.
  if (grant_->open > 0 || under_way_ > 0 || waiting_ > 0) last_busy_ = now;
  if (now - std::max(last_busy_, grant_->since) >= Idle()) {
    GiveBack(true);
    return 0;
  }
  return std::clamp(Idle() / 2, 500 * kUs, 20 * kMs);
}

void TimeSlices::Demand(bool tokens) {
  std::lock_guard lock(mutex_);
  SetMode(kDemanded, tokens);
  sample_left_ = 0;
  SetMode(kSampling, false);
  if (!tokens) {
    if (grant_) GiveBack(true);
    asked_ = false;
  }
  changed_.notify_all();
}

void TimeSlices::Granted(uint64_t id, uint64_t quantum_ns, uint64_t lease_ns) {
  std::lock_guard lock(mutex_);
  const uint64_t now = clock_->Now();
  if (grant_) Drop();
  if ((mode_.load(std::memory_order_relaxed) & kDemanded) == 0) {  // nobody here needs it any more
    port_->GiveBack(id, 0, 0, false);
    return;
  }
  grant_ = std::make_shared<Book>();
  grant_->id = id;
  grant_->quantum = quantum_ns;
  grant_->since = now;
  grant_->until = now + lease_ns;
  changed_.notify_all();
}

void TimeSlices::Revoked(uint64_t id) {
  std::lock_guard lock(mutex_);
  if (grant_ && grant_->id == id) Drop();
}

void TimeSlices::Lost() {
  std::lock_guard lock(mutex_);
  SetMode(kDemanded, false);
  if (grant_) Settle(std::exchange(grant_, nullptr));
  for (const auto& book : late_) Settle(book);
  late_.clear();
  asked_ = false;
  changed_.notify_all();
}

void TimeSlices::Sample(uint64_t launches) {
  std::lock_guard lock(mutex_);
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
    estimated_ += std::min(sample_sum_ / sample_count_ * made, now - sampled_at_);
    sample_launches_ = launches;
    sampled_at_ = now;
    sample_sum_ = sample_count_ = 0;
  }
  sample_left_ = kSamples;
  SetMode(kSampling, true);
}

bool TimeSlices::holding() {
  std::lock_guard lock(mutex_);
  return grant_ != nullptr;
}

TimeSlices::Used TimeSlices::used() {
  std::lock_guard lock(mutex_);
  return {measured_ + estimated_, estimated_};
}

void TimeSlices::Forget(bool (*gone)(void*, const void*), const void* context) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < segments_.size();) {
    Segment& s = *segments_[i];
    if (s.busy > 0 || !gone(s.stream, context)) {
      ++i;
      continue;
    }
    s.begin = s.end = nullptr;  // went with the context
    Finish(s);
  }
  const auto unbase = [&](Book& book) { book.base = nullptr; };
  if (grant_) unbase(*grant_);
  for (const auto& book : late_) unbase(*book);
}

}  // namespace sluice::compute
