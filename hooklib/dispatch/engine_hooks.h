// Functions of the engine that the dispatch calls. hooklib/engine defines them; without it, weak_engine.cc's
// definitions do nothing.
#ifndef SLUICE_HOOKLIB_DISPATCH_ENGINE_HOOKS_H_
#define SLUICE_HOOKLIB_DISPATCH_ENGINE_HOOKS_H_

#include <atomic>
#include <cstdint>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// Called once, when the engine is loaded and before any entry can be reached. g_real is filled if libcuda is in the
// process; a program that only uses NVML does not have it. Runs under the dynamic loader's lock: it may start threads,
// must not wait for them, and makes no CUDA call (the program has not called cuInit yet).
void EngineInit();

// At exit(), or when the library is unloaded by the loader. Other threads may still be running, the driver may be gone.
void EngineExit();

// The container's share of the GPU with this NVML uuid ("GPU-..."), in bytes; `card_bytes` are the GPU's. It is the
// same in every process of the container, also before cuInit. False: the container has no share of it, and the driver's
// answers pass unchanged.
struct Share {
  std::uint64_t total = 0;
  std::uint64_t used = 0;    // by all of the container's processes
  bool is_use_known = true;  // false: there is no agent, and this process has made no context
};
bool ShareOf(const char* uuid, std::uint64_t card_bytes, Share* share);

// One of the container's processes on that GPU.
struct ShareUser {
  std::uint32_t pid = 0;          // in its own namespace
  std::uint32_t utilization = 0;  // its GPU time in the last second, percent
  std::uint64_t bytes = 0;
};
// At most `max` of them are written. The number; -1: no agent says it.
int ShareUsers(const char* uuid, ShareUser* users, int max);
// GPU time of the container in the last second, percent; -1: no agent says it.
int ShareUtilization(const char* uuid);

// Set in a child of a process that uses CUDA. All its calls go to the driver, which refuses them: any lock of the
// engine's may be held there for ever.
extern std::atomic<bool> g_is_forked_child;

// Around a driver call that queues work which no entry plans. `per_thread`: the flavour that names default streams. The
// result of BeginCounted goes to EndCounted; null: nothing is counted.
void* BeginCounted(CUstream stream, bool per_thread);
void EndCounted(void* queue);

// Calls beside a capture (SLUICE_CAPTURE). Some stream of the process is captured:
bool IsAnyCaptured();
// This one is, by the flavour that names default streams:
bool IsStreamCaptured(CUstream stream, bool per_thread);
// The driver's answer to an unsafe call of this thread; it breaks the captures that bar one. CUDA_SUCCESS: none does.
CUresult AskUnsafe();
// Its answer to an unsafe call that names this stream: refused where the stream is captured, where it is the legacy
// stream beside a captured blocking one, and where AskUnsafe is. It breaks those captures.
CUresult AskOfStream(CUstream stream, bool per_thread);

// The program was given a driver function that is newer than the table (cuGetProcAddress of `version`, as 13060): a
// newer signature of one that is intercepted, or a name that the table does not know. Its calls pass the hook by.
void NoteNewerEntry(const char* symbol, int version);

// PyTorch's caching allocator reports a malloc (size > 0) or free (size < 0) inside its segments. device_type 1 is
// CUDA.
void OnAllocatorReport(void* ptr, long size, signed char device_type, signed char device_index);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DISPATCH_ENGINE_HOOKS_H_
