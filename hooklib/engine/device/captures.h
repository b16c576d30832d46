// The open stream captures of the process.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_CAPTURES_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_CAPTURES_H_

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// Each capture is known by the stream where it began. It ends with cuStreamEndCapture, with its stream or with its
// context; g_captures (streams.h) is their number. `stream` is a handle as the driver's legacy flavour takes it; a
// per-thread default stream is the calling thread's in its current context. Thread-safe.
bool NoteCapture(CUstream stream);  // false: the stream is captured already
// After NoteCapture: returns when no engine call that did not know of the capture is under way with a device's lock
// held. One such call would be work in the captured stream, or break the capture. The caller holds no lock.
void AwaitEngineCalls();
void ForgetCapture(CUstream stream);
void ForgetCapturesOf(CUcontext context);
void ForgetCapturesOf(uint64_t thread);  // of its default streams, which end with it

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_CAPTURES_H_
