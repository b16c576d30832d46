// Definitions in place of hooklib/engine's, which do nothing: tests of the shim and the dispatch link no engine.
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

__attribute__((weak)) void EngineInit() {}
__attribute__((weak)) void EngineExit() {}
__attribute__((weak)) bool ShareOf(const char*, std::uint64_t, Share*) { return false; }
__attribute__((weak)) int ShareUsers(const char*, ShareUser*, int) { return -1; }
__attribute__((weak)) int ShareUtilization(const char*) { return -1; }
__attribute__((weak)) void* BeginCounted(CUstream, bool) { return nullptr; }
__attribute__((weak)) bool IsAnyCaptured() { return false; }
__attribute__((weak)) bool IsStreamCaptured(CUstream, bool) { return false; }
__attribute__((weak)) CUresult AskUnsafe() { return CUDA_SUCCESS; }
__attribute__((weak)) CUresult AskOfStream(CUstream, bool) { return CUDA_SUCCESS; }
__attribute__((weak)) void NoteNewerEntry(const char*, int) {}
__attribute__((weak)) void EndCounted(void*) {}
__attribute__((weak)) void OnAllocatorReport(void*, long, signed char, signed char) {}
__attribute__((weak)) void* LibraryEntry(const char*) { return nullptr; }

}  // namespace sluice
