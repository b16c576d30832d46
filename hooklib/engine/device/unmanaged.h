// Memory that stays as the driver made it: counted, bounded by the budget, never moved.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_UNMANAGED_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_UNMANAGED_H_

#include "hooklib/engine/device/devices.h"

namespace sluice {

// Bytes that ReserveUnmanaged has counted, by their address. They are released by ForgetUnmanaged, or with `context`
// (null: with none). Thread-safe.
void RememberUnmanaged(CUdeviceptr pointer, uint64_t bytes, Device* device, CUcontext context);
void ForgetUnmanaged(CUdeviceptr pointer);
void ForgetUnmanagedOf(CUcontext context);
// Pools whose memory the engine must not serve: shared by handle, or not on a device. Thread-safe.
void NoteExternalPool(CUmemoryPool pool);
bool IsExternalPool(CUmemoryPool pool);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_UNMANAGED_H_
