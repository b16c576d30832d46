// A mutex of one word. To take it while nobody holds it, and to leave it while nobody waits, is one atomic instruction
// each, in line: a launch over the budget takes two such locks, and pthread's take 130 instructions more for that.
// After U. Drepper, "Futexes Are Tricky". Not recursive; who waits longest need not be next.
#ifndef SLUICE_HOOKLIB_MEMORY_LOCK_H_
#define SLUICE_HOOKLIB_MEMORY_LOCK_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "common/thread_annotations.h"

namespace sluice::memory {

class SLUICE_CAPABILITY("lock") Lock {
 public:
  void lock() SLUICE_ACQUIRE() {
    uint32_t free = kFree;
    if (!state_.compare_exchange_strong(free, kTaken, std::memory_order_acquire, std::memory_order_relaxed)) Wait();
  }
  bool try_lock() SLUICE_TRY_ACQUIRE(true) {
    uint32_t free = kFree;
    return state_.compare_exchange_strong(free, kTaken, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void unlock() SLUICE_RELEASE() {
    if (state_.exchange(kFree, std::memory_order_release) == kWaitedFor) Wake();
  }

 private:
  enum : uint32_t { kFree, kTaken, kWaitedFor };
  // Who has waited leaves it as one that is waited for: there may be others.
  __attribute__((noinline)) void Wait() {
    while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) Futex(FUTEX_WAIT_PRIVATE, kWaitedFor);
  }
  __attribute__((noinline)) void Wake() { Futex(FUTEX_WAKE_PRIVATE, 1); }
  void Futex(int what, uint32_t value) { syscall(SYS_futex, &state_, what, value, nullptr, nullptr, 0); }
  std::atomic<uint32_t> state_{kFree};
  static_assert(sizeof state_ == 4);
};

// The same, and who holds it may ask whether anybody has had it since: what it guards is as it was, if not.
class SLUICE_CAPABILITY("lock") CountedLock {
 public:
  // Not checked: the capability is this lock, and not the one in it.
  void lock() SLUICE_ACQUIRE() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    lock_.lock();
    ++acquisitions_;
  }
  void unlock() SLUICE_RELEASE() SLUICE_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }
  uint64_t acquisitions() const { return acquisitions_; }  // that it was taken; for its holder

 private:
  Lock lock_;
  uint64_t acquisitions_ = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_LOCK_H_
