// The frame of every entry: find the real function, describe the call if its set is wanted, call.
//
// An entry never changes an argument and never looks at the result. While no sets are wanted it is one test and the
// call.
#ifndef SLUICE_HOOKLIB_LIBRARIES_CALL_SCOPE_H_
#define SLUICE_HOOKLIB_LIBRARIES_CALL_SCOPE_H_

#include "hooklib/dispatch/uncancelled.h"
#include "hooklib/libraries/companions.h"
#include "hooklib/libraries/extents/access_set.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice::libraries {

// The library call that this thread makes, from its description to its return.
class CallScope {
 public:
  explicit CallScope(const char* symbol);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  AccessSet* set() { return set_; }  // null: calls are nested too deep, or the thread is ending
  // The set is complete: from here on CurrentLibraryCall() is this call.
  void Publish();

 private:
  AccessSet* set_ = nullptr;
  LibraryCall call_;
  LibraryCall* outer_ = nullptr;
};

// The copy of the library that was called, for a description's questions.
struct LibraryCopy {
  void* real;
  template <typename Function>
  Function* Find(const char* symbol) const {
    return reinterpret_cast<Function*>(CompanionOf(real, symbol));
  }
};

// `Result`: cuBLAS' or cuDNN's status.
template <typename Result, typename Describe, typename... Args>
inline Result DescribeAndCall(const char* symbol, Result (*real)(Args...), Describe describe, Args... args) {
  const UncancelledScope uncancelled;
  CallScope scope(symbol);
  if (scope.set()) {
    try {
      describe(LibraryCopy{reinterpret_cast<void*>(real)}, scope.set());
    } catch (...) {  // out of host memory: the program's call goes on
      scope.set()->Clear();
      scope.set()->MarkUnknown(UnknownReason::kUnsupported);
    }
    scope.Publish();
  }
  return real(args...);
}

template <typename Result, typename Describe, typename... Args>
inline Result Forward(const char* symbol, Describe describe, Args... args) {
  auto* const real = reinterpret_cast<Result (*)(Args...)>(LibraryReal());
  if (!g_library_calls_wanted.load(std::memory_order_relaxed)) [[likely]]
    return real(args...);
  return DescribeAndCall<Result>(symbol, real, describe, args...);
}

inline uint64_t Address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }
inline uint64_t Address(const void* const* pointers) { return reinterpret_cast<uintptr_t>(pointers); }

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_CALL_SCOPE_H_
