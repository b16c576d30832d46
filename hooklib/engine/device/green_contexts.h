// Green contexts: parts of a device's multiprocessors. Memory belongs to the primary context, streams to the green one.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_GREEN_CONTEXTS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_GREEN_CONTEXTS_H_

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// `context` stands for the green context (cuCtxFromGreenCtx, cuStreamGetCtx_v2). Thread-safe, as all below.
void NoteGreenContext(CUcontext context, CUgreenCtx green);
bool IsGreenContext(CUcontext context);
// Null: no context is known for it.
CUcontext ContextOfGreen(CUgreenCtx green);
void ForgetGreenContext(CUgreenCtx green);
// The primary context of the green one, if it was noted. Retaining it to ask would keep it alive meanwhile, beside a
// thread that ends it.
CUcontext PrimaryOfGreen(CUcontext context);
void NotePrimaryOfGreen(CUcontext context, CUcontext primary);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_GREEN_CONTEXTS_H_
