// An answer of the loop that many threads ask for at once. However often they do, the loop makes it in a bounded part
// of its time: readers of metrics must not delay the tenants' frames.
#ifndef SLUICE_AGENT_SHARED_ANSWER_H_
#define SLUICE_AGENT_SHARED_ANSWER_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "agent/event_loop.h"
#include "common/mutex.h"

namespace sluice::agent {

template <typename T>
class SharedAnswer {
 public:
  // `make` runs on the loop's thread. An answer is given again for `least_ns`, and until its making took at most a
  // two-hundredth of the time; at most five seconds. It must outlive the loop's work.
  SharedAnswer(EventLoop* loop, uint64_t least_ns, std::function<T()> make)
      : loop_(loop), least_ns_(least_ns), make_(std::move(make)) {}

  // Any thread but the loop's. nullptr: the loop has not answered within two seconds.
  std::shared_ptr<const T> Get() SLUICE_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (answer_ && MonotonicNs() < fresh_until_ns_) return answer_;
    if (!std::exchange(is_asked_, true)) loop_->Post([this] { Make(); });
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (is_asked_) {
      if (std::chrono::steady_clock::now() >= end) return nullptr;
      answered_.WaitUntil(mutex_, end);
    }
    return answer_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{2};
  static constexpr uint64_t kPart = 200, kMaxFreshNs = 5'000'000'000;

  void Make() SLUICE_EXCLUDES(mutex_) {
    const uint64_t began = ThreadNs();
    auto fresh = std::make_shared<const T>(make_());
    const uint64_t took = ThreadNs() - began;
    {
      const MutexLock lock(mutex_);
      answer_ = std::move(fresh);
      fresh_until_ns_ = MonotonicNs() + std::clamp(took * kPart, least_ns_, kMaxFreshNs);
      is_asked_ = false;
    }
    answered_.NotifyAll();
  }

  EventLoop* const loop_;
  const uint64_t least_ns_;
  const std::function<T()> make_;
  Mutex mutex_;
  Condition answered_;
  bool is_asked_ SLUICE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const T> answer_ SLUICE_GUARDED_BY(mutex_);
  uint64_t fresh_until_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_SHARED_ANSWER_H_
