// Threads that another one cancels (pthread_cancel).
#ifndef SLUICE_HOOKLIB_DISPATCH_UNCANCELLED_H_
#define SLUICE_HOOKLIB_DISPATCH_UNCANCELLED_H_

#include <pthread.h>

namespace sluice {

// No cancellation of the calling thread takes effect in the scope: it stays pending until the program's next
// cancellation point. glibc ends a cancelled thread by unwinding its stack with its own unwinder, which cannot pass
// frames of the shipped engine, and would skip what these hold. 20 instructions.
class UncancelledScope {
 public:
  UncancelledScope() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~UncancelledScope() {
    if (before_ == PTHREAD_CANCEL_ENABLE) pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  }
  UncancelledScope(const UncancelledScope&) = delete;
  UncancelledScope& operator=(const UncancelledScope&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_DISABLE;
};

// The same around one call, and without a destructor: a frame that has nothing to clean up is passed by any unwinder.
template <typename Call>
auto Uncancelled(Call call) {
  int before = PTHREAD_CANCEL_DISABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  const auto result = call();
  if (before == PTHREAD_CANCEL_ENABLE) pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  return result;
}

// An entry of a table, so.
template <auto Entry, typename Function>
struct UncancelledEntry;
template <auto Entry, typename Result, typename... Args>
struct UncancelledEntry<Entry, Result(Args...)> {
  static Result Call(Args... args) {
    return Uncancelled([&] { return Entry(args...); });
  }
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DISPATCH_UNCANCELLED_H_
