// The current context of the calling thread, for the engine's own calls.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_CONTEXT_SCOPE_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_CONTEXT_SCOPE_H_

#include "hooklib/dispatch/real.h"

namespace sluice {

// Makes a context current for a scope, where another one is. An event is created, recorded and queried, and a default
// stream is named, in the context of the stream that it belongs to (CUDA driver API, "Stream management"): whatever
// the application made current says nothing about that.
class ContextScope {
 public:
  explicit ContextScope(CUcontext context) {
    CUcontext current = nullptr;
    if (g_real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) return;
    pushed_ = g_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
    is_current_ = pushed_;
  }
  ~ContextScope() {
    CUcontext popped = nullptr;
    if (pushed_) g_real.cuCtxPopCurrent_v2(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  bool is_current() const { return is_current_; }  // false: the context cannot be made current

 private:
  bool pushed_ = false, is_current_ = true;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_CONTEXT_SCOPE_H_
