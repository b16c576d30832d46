// A mutex of one word. Taking it free and releasing it without waiters is one atomic instruction each, in line: a
// launch over the budget takes two such locks, and pthread's take 130 instructions more for that. After U. Drepper,
// "Futexes Are Tricky". Not recursive and not fair.
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
  // A thread that has waited takes the lock as kWaitedFor: there may be other waiters.
  __attribute__((noinline)) void Wait() {
    while (state_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) Futex(FUTEX_WAIT_PRIVATE, kWaitedFor);
  }
  __attribute__((noinline)) void Wake() { Futex(FUTEX_WAKE_PRIVATE, 1); }
  void Futex(int what, uint32_t value) { syscall(SYS_futex, &state_, what, value, nullptr, nullptr, 0); }
  std::atomic<uint32_t> state_{kFree};
  static_assert(sizeof state_ == 4);
};

// The same lock with a count of its acquisitions: as long as the count is the holder's own, its data is unchanged.
class SLUICE_CAPABILITY("lock") CountedLock {
 public:
  // Not checked: the capability is this lock, and not the one in it.
  void lock() SLUICE_ACQUIRE() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
    lock_.lock();
    ++acquisitions_;
  }
  void unlock() SLUICE_RELEASE() SLUICE_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }
  uint64_t acquisitions() const { return acquisitions_; }  // for the holder

 private:
  Lock lock_;
  uint64_t acquisitions_ = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_LOCK_H_
