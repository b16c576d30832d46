// The container's share of a GPU, for programs that ask NVML (ShareOf and others in hooklib/dispatch/engine_hooks.h).
#ifndef SLUICE_HOOKLIB_ENGINE_SHARE_H_
#define SLUICE_HOOKLIB_ENGINE_SHARE_H_

namespace sluice {

// Once, before any fork. Connects to nothing.
void InitShare();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_SHARE_H_
