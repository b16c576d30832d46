// Entries made from descriptions. Entry<"cublasSgemm_v2", int(...), &Describe>::Call has the function's own signature
// and hands its arguments, unchanged, to the description and to the library.
#ifndef SLUICE_HOOKLIB_LIBRARIES_ENTRY_H_
#define SLUICE_HOOKLIB_LIBRARIES_ENTRY_H_

#include <algorithm>
#include <span>

#include "hooklib/libraries/call_scope.h"

namespace sluice::libraries {

template <std::size_t N>
struct Name {
  char text[N];
  constexpr Name(const char (&from)[N]) { std::copy_n(from, N, text); }  // NOLINT(google-explicit-constructor)
};

// describe(Copy, AccessSet*, arguments...)
template <Name name, typename Signature, auto describe>
struct Entry;
template <Name name, typename Result, typename... Args, auto describe>
struct Entry<name, Result(Args...), describe> {
  // Passive, it is a test and a jump: no argument's address is taken here, so none is copied.
  static Result Call(Args... args) {
    auto* const real = reinterpret_cast<Result (*)(Args...)>(LibraryReal());
    if (!g_library_calls_wanted.load(std::memory_order_relaxed)) [[likely]]
      return real(args...);
    return Described(real, args...);
  }
  [[gnu::noinline]] static Result Described(Result (*real)(Args...), Args... args) {
    return Describing<Result>(
        name.text, real, [&](const Copy& copy, AccessSet* set) { describe(copy, set, args...); }, args...);
  }
};

struct EntryRow {
  const char* symbol;
  void* entry;
};
std::span<const EntryRow> BlasEntries();
std::span<const EntryRow> CudnnEntries();

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_ENTRY_H_
