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

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DISPATCH_UNCANCELLED_H_
