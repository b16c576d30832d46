// std::mutex and std::condition_variable with thread-safety annotations, which libstdc++'s own types lack.
#ifndef SLUICE_COMMON_MUTEX_H_
#define SLUICE_COMMON_MUTEX_H_

#include <condition_variable>
#include <mutex>

#include "common/thread_annotations.h"

namespace sluice {

class SLUICE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() SLUICE_ACQUIRE() { mutex_.lock(); }
  void Unlock() SLUICE_RELEASE() { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
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
  void Wait(Mutex& mutex) SLUICE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  template <typename TimePoint>
  void WaitUntil(Mutex& mutex, const TimePoint& end) SLUICE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_until(lock, end);
    lock.release();
  }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_MUTEX_H_
