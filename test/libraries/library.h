// A library of the test's own behind an entry. It keeps its arguments and the access set of its own call.
// entries_test.cc defines LibraryReal and LibrarySymbol in place of the shim.
#ifndef SLUICE_TEST_LIBRARIES_LIBRARY_H_
#define SLUICE_TEST_LIBRARIES_LIBRARY_H_

#include <catch2/catch_test_macros.hpp>
#include <tuple>
#include <type_traits>
#include <vector>

#include "hooklib/libraries/library_calls.h"
#include "test/libraries/oracle.h"

namespace sluice::libraries::test {

inline thread_local void* t_real = nullptr;  // the function that LibraryReal returns

// CurrentLibraryCall() inside the library's function.
struct SeenCall {
  bool inside = false;
  LibraryCall call;
  std::vector<LibraryRange> ranges;
};
inline thread_local SeenCall t_seen;

inline void KeepCurrentCall() {
  t_seen = {};
  const LibraryCall* call = CurrentLibraryCall();
  if (!call) return;
  t_seen.inside = true;
  t_seen.call = *call;
  t_seen.ranges.assign(call->ranges.begin(), call->ranges.end());
}

// A library's function of any signature: keeps its arguments and returns a status of its own.
template <typename Signature>
struct Library;
template <typename Result, typename... Args>
struct Library<Result(Args...)> {
  static inline thread_local std::tuple<Args...> got;
  static Result Function(Args... args) {
    got = std::tuple<Args...>(args...);
    KeepCurrentCall();
    return static_cast<Result>(1234);
  }
  static Result Call(const char* symbol, Args... args) {
    t_real = reinterpret_cast<void*>(&Function);
    auto* const entry = reinterpret_cast<Result (*)(Args...)>(LibraryEntry(symbol));
    REQUIRE(entry != nullptr);
    return entry(args...);
  }
  // Calls it with random arguments. False: an argument or the status changed on the way.
  static bool Passes(const char* symbol, Random& random) {
    std::tuple<Args...> args{Any<Args>(random)...};
    const Result result = std::apply([&](auto... a) { return Call(symbol, a...); }, args);
    return static_cast<int>(result) == 1234 && args == got && CurrentLibraryCall() == nullptr;
  }

 private:
  template <typename T>
  static T Any(Random& random) {
    alignas(16) static char zeroes[1 << 16];
    if constexpr (std::is_pointer_v<T>) {
      return random.OneIn(12) ? nullptr : reinterpret_cast<T>(zeroes + 16 * random.In(0, 1000));
    } else if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(random.In(0, 1));  // of each enumeration, however few values it has
    } else {
      return static_cast<T>(random.In(random.OneIn(4) ? -3 : 0, 40));
    }
  }
};

// Sets are wanted as long as it exists.
struct Wanted {
  explicit Wanted(bool on = true) { g_library_calls_wanted = on; }
  ~Wanted() { g_library_calls_wanted = false; }
};

}  // namespace sluice::libraries::test

#endif  // SLUICE_TEST_LIBRARIES_LIBRARY_H_
