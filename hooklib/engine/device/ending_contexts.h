// Contexts whose ends are under way: the driver may give a handle again before the engine has forgotten the old
// context.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_ENDING_CONTEXTS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_ENDING_CONTEXTS_H_

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// Held from before the driver's call to behind the engine's own end of the context. May be held by several threads.
class ContextEnd {
 public:
  explicit ContextEnd(CUcontext context);
  ~ContextEnd();
  ContextEnd(const ContextEnd&) = delete;
  ContextEnd& operator=(const ContextEnd&) = delete;

 private:
  CUcontext context_;
};

// The retains and releases of a device's primary context, by one thread at a time. Nests within a thread.
class PrimaryScope {
 public:
  explicit PrimaryScope(CUdevice gpu);
  ~PrimaryScope();
  PrimaryScope(const PrimaryScope&) = delete;
  PrimaryScope& operator=(const PrimaryScope&) = delete;

 private:
  CUdevice gpu_;
};

// Behind the driver's call that gave out the handle, and before the application has it: waits for the ends of the old
// context with that handle. Thread-safe. They end soon, since the driver has ended it.
void AwaitContextEnd(CUcontext context);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_ENDING_CONTEXTS_H_
