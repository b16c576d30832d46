// A mutex and a condition variable with thread-safety annotations, which the types of libstdc++ lack.
//
// On pthread's own types: std::condition_variable may wait by the system's clock, which may be set.
#ifndef SLUICE_COMMON_MUTEX_H_
#define SLUICE_COMMON_MUTEX_H_

#include <pthread.h>

#include <chrono>
#include <ctime>

#include "common/thread_annotations.h"

namespace sluice {

class SLUICE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() SLUICE_ACQUIRE() { pthread_mutex_lock(&mutex_); }
  void Unlock() SLUICE_RELEASE() { pthread_mutex_unlock(&mutex_); }

 private:
  friend class Condition;
  pthread_mutex_t mutex_ =
      PTHREAD_MUTEX_INITIALIZER;  // a constant, and nothing to destroy: usable before and after main
};

// Holds the mutex for a scope.
class SLUICE_SCOPED_LOCK MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SLUICE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() SLUICE_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Releases a held mutex for a scope, and takes it again at its end.
class SLUICE_SCOPED_LOCK MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) SLUICE_RELEASE(mutex) : mutex_(mutex) { mutex_.Unlock(); }
  ~MutexUnlock() SLUICE_RELEASE() { mutex_.Lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// The caller of Wait() holds the mutex and checks its condition again afterwards: a wait may end without a notice.
class Condition {
 public:
  Condition() {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&condition_, &monotonic);
    pthread_condattr_destroy(&monotonic);
  }
  ~Condition() { pthread_cond_destroy(&condition_); }
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  void Wait(Mutex& mutex) SLUICE_REQUIRES(mutex) { pthread_cond_wait(&condition_, &mutex.mutex_); }
  // Returns at `end` at the latest, and at once where it is over.
  void WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point end) SLUICE_REQUIRES(mutex) {
    const std::chrono::nanoseconds ns = end.time_since_epoch();  // of CLOCK_MONOTONIC
    const timespec at{static_cast<time_t>(ns.count() / 1'000'000'000), static_cast<long>(ns.count() % 1'000'000'000)};
    pthread_cond_timedwait(&condition_, &mutex.mutex_, &at);
  }
  void NotifyOne() { pthread_cond_signal(&condition_); }
  void NotifyAll() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_MUTEX_H_
