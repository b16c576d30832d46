// Contexts that an error of the GPU has ended, as an illegal address does. The driver answers each later call with that
// error. So do the calls that the engine serves without the driver.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_FAILURES_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_FAILURES_H_

#include <atomic>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

extern std::atomic<bool> g_any_failed;  // some context has failed

// Whether the driver gives the error to all later calls in its context.
bool EndsContext(CUresult result);
void NoteError(CUcontext context, CUresult result);
// The answer of a call in the context. Thread-safe, as everything here; takes no other lock.
inline void NoteAnswer(CUcontext context, CUresult result) {
  if (result != CUDA_SUCCESS) NoteError(context, result);
}
// The error that ended the context; CUDA_SUCCESS: none that the engine has seen.
CUresult FailureOf(CUcontext context);
void ForgetFailure(CUcontext context);  // it is gone, and its handle may come again

CUresult FindCurrentFailure();
// Of the calling thread's context.
inline CUresult CurrentFailure() {
  return g_any_failed.load(std::memory_order_relaxed) ? FindCurrentFailure() : CUDA_SUCCESS;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_FAILURES_H_
