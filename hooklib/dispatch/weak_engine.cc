// Where hooklib/engine does not define these, they do nothing: the shim and the dispatch are testable without the
// engine.
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

__attribute__((weak)) void EngineInit() {}
__attribute__((weak)) void EngineExit() {}
__attribute__((weak)) bool FractionView(const char*, std::uint64_t*, std::uint64_t*) { return false; }
__attribute__((weak)) void OnAllocatorReport(void*, long, signed char, signed char) {}
__attribute__((weak)) void* LibraryEntry(const char*) { return nullptr; }

}  // namespace sluice
