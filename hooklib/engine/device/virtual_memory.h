// The application's VMM memory: physical handles, reservations, mappings, and which of them are managed memory.
//
// Managed memory can neither be placed at a chosen address nor be mapped twice. So in managed form the *reservation* is
// managed memory, a handle is a charge, and a mapping makes chunks of the reservation live. Both forms look alike:
//  - A reservation chooses its form when it is made, though it names no device: PyTorch reserves before it creates.
//  - A handle's form is chosen at its first use. Mapped into a managed reservation it becomes managed. Mapped into
//    another one, exported, or bound to an array or a multicast object, it becomes unmanaged, the driver's own.
//  - Contents of a handle that is unmapped and not released stay where they are, and are copied when the handle is
//    mapped elsewhere, or before another one is mapped there.
//  - An operation that managed memory cannot do makes the handle, and the reservation that it is mapped in, unmanaged
//    and keeps their contents: a second mapping, an export, a mapping beside unmanaged memory or beside another
//    device's. The GPU is waited for meanwhile. Refused with CUDA_ERROR_NOT_SUPPORTED and a line in the log where that
//    is not safe: while other threads queue work, while a stream is captured, and where queued work does not end.
//
// The values of handles that begin in managed form are the engine's own: no address, so that no driver gives them too.
//
// Thread-safe. The locks of this file are taken before the devices' locks.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_VIRTUAL_MEMORY_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_VIRTUAL_MEMORY_H_

#include <cstdint>
#include <optional>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/types.h"

namespace sluice {
struct Device;
}  // namespace sluice

namespace sluice::virtual_memory {

using Handle = CUmemGenericAllocationHandle;

// As the driver's calls of these names. `caller`: the return address of the entry.
CUresult Reserve(const void* caller, CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr hint,
                 unsigned long long flags);
CUresult FreeAddress(CUdeviceptr pointer, size_t bytes);
CUresult Create(const void* caller, Handle* handle, size_t bytes, const CUmemAllocationProp* properties,
                unsigned long long flags);
CUresult Release(Handle handle);
CUresult Retain(const void* caller, Handle* handle, void* address);
CUresult Map(CUdeviceptr pointer, size_t bytes, size_t offset, Handle handle, unsigned long long flags);
CUresult Unmap(CUdeviceptr pointer, size_t bytes);
CUresult SetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access, size_t count);
CUresult GetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer);
CUresult GetProperties(CUmemAllocationProp* properties, Handle handle);

// The driver's own handle for one that the application names, for calls that only unmanaged memory allows. Makes the
// handle unmanaged where it has no form yet. `use`: for the log, as "exported".
CUresult DriverHandle(Handle handle, const char* use, Handle* unmanaged);

// The same for the mapping at the address, with its whole reservation.
CUresult MakeDriversOwn(CUdeviceptr pointer, const char* use);

// The mapping that holds the address, of memory in managed form.
struct MappedRange {
  memory::Extent range, reservation;
  uint64_t id;  // of its handle: CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
};
std::optional<MappedRange> Find(CUdeviceptr pointer);

// The application's reservation in managed form that holds the address, mapped or not.
std::optional<memory::Extent> FindReservation(CUdeviceptr pointer);

// Whether the address lies in a reservation in managed form, but in no mapping: nothing is there for the application.
// Takes no lock for addresses far from all of them.
bool IsUnmapped(CUdeviceptr pointer);

// Whether a mapping in the range, which begins in one, gives no device rights: the driver refuses copies there.
bool LacksRights(memory::Extent range);

// Whether the device's primary context is retained for reservations.
bool HoldsPrimary(const Device* device);

// The device's primary context is about to be reset, which VMM memory outlives: it becomes the driver's own, as far as
// the budget has room for it.
void OutliveReset(const Device* device);

// The context is gone, and with it the managed memory of its reservations; before the devices forget it.
void ForgetReservationsOf(CUcontext context);

}  // namespace sluice::virtual_memory

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_VIRTUAL_MEMORY_H_
