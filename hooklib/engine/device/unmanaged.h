// Memory that stays as the driver made it: counted, bounded by the budget, never moved.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_UNMANAGED_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_UNMANAGED_H_

#include <optional>

#include "hooklib/engine/device/devices.h"

namespace sluice {

// Bytes that ReserveUnmanaged has counted, by their address. They are released by ReleaseUnmanaged, or with `context`
// (null: with none). Thread-safe.
void RememberUnmanaged(CUdeviceptr pointer, uint64_t bytes, Device* device, CUcontext context);
void ForgetUnmanagedOf(CUcontext context);

// A charge that was taken out of the account.
struct UnmanagedCharge {
  uint64_t bytes = 0;
  Device* device = nullptr;
  CUcontext context = nullptr;  // it ends with this one; null: with none
};
std::optional<UnmanagedCharge> TakeUnmanaged(CUdeviceptr pointer);
void PutUnmanagedBack(CUdeviceptr pointer, const UnmanagedCharge& charge);
void SettleUnmanaged(const UnmanagedCharge& charge);  // its bytes are released
// The driver frees the memory. Its charge is taken before the call, because another thread may be given the same
// address as soon as the driver has it back.
template <typename Real>
CUresult ReleaseUnmanaged(CUdeviceptr pointer, Real real) {
  const std::optional<UnmanagedCharge> charge = TakeUnmanaged(pointer);
  const CUresult result = real();
  if (charge) {
    if (result == CUDA_SUCCESS) {
      SettleUnmanaged(*charge);
    } else {
      PutUnmanagedBack(pointer, *charge);
    }
  }
  return result;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_UNMANAGED_H_
