#include "hooklib/engine/device/captures.h"

#include <map>
#include <tuple>

#include "common/mutex.h"
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/streams.h"

namespace sluice {

std::atomic<int> g_captures{0};

namespace {

// Thread and context are those of a per-thread default stream, else 0: each context has one for each thread.
using CaptureKey = std::tuple<CUstream, uint64_t, CUcontext>;

CaptureKey KeyOf(CUstream stream) {
  if (stream != CU_STREAM_PER_THREAD) return {stream, 0, nullptr};
  CUcontext context = nullptr;
  g_real.cuCtxGetCurrent(&context);
  return {stream, ThisThread(), context};
}

Mutex g_mutex;  // no other lock is taken inside
std::map<CaptureKey, CUcontext>& Open() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CaptureKey, CUcontext>();
  return map;
}
CUstream Named(CUstream stream, bool per_thread) {
  return stream == nullptr && per_thread ? CU_STREAM_PER_THREAD : stream;
}
// Another error is for the call itself.
CUresult OfCaptures(CUresult answer) {
  const bool is_of_captures =
      answer >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && answer <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  return is_of_captures ? answer : CUDA_SUCCESS;
}
void Count() SLUICE_REQUIRES(g_mutex) { g_captures.store(static_cast<int>(Open().size())); }

}  // namespace

bool NoteCapture(CUstream stream) {
  CUcontext context = nullptr;
  if (stream == CU_STREAM_PER_THREAD || !g_real.cuStreamGetCtx ||
      g_real.cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) {
    g_real.cuCtxGetCurrent(&context);
  }
  const CaptureKey key = KeyOf(stream);
  MutexLock lock(g_mutex);
  const bool is_new = Open().emplace(key, context).second;
  Count();
  return is_new;
}

void AwaitEngineCalls() {
  for (const auto& device : Devices()) DeviceLock lock(device->mutex);
}

void ForgetCapture(CUstream stream) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return;
  const CaptureKey key = KeyOf(stream);
  MutexLock lock(g_mutex);
  Open().erase(key);
  Count();
}

void ForgetCapturesOf(CUcontext context) {
  MutexLock lock(g_mutex);
  std::erase_if(Open(), [context](const auto& entry) { return entry.second == context; });
  Count();
}

void ForgetCapturesOf(uint64_t thread) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return;
  MutexLock lock(g_mutex);
  std::erase_if(Open(), [thread](const auto& entry) { return std::get<1>(entry.first) == thread; });
  Count();
}

bool IsAnyCaptured() { return g_captures.load(std::memory_order_relaxed) > 0; }

bool IsStreamCaptured(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return g_real.cuStreamIsCapturing(Named(stream, per_thread), &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// The modes of all captures and of the calling thread are the driver's. A free of nothing is unsafe, as the other calls
// are, and does nothing where it is allowed.
CUresult AskUnsafe() { return OfCaptures(g_real.cuMemFree_v2(0)); }
// A query is unsafe, and looks at its stream first. The driver would judge the call's own arguments by the arena.
CUresult AskOfStream(CUstream stream, bool per_thread) {
  return OfCaptures(g_real.cuStreamQuery(Named(stream, per_thread)));
}

}  // namespace sluice
