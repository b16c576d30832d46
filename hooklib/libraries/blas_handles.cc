#include "hooklib/libraries/blas_handles.h"

#include <array>
#include <atomic>

#include "hooklib/libraries/entries.h"

namespace sluice::libraries {

namespace {

// A program sets stream and workspace before nearly every call (PyTorch does), so there is no lock: a slot a handle, by
// its hash. Two handles that meet in one slot displace each other: the workspace is then found by the kernels' own
// parameters.
struct Slot {
  std::atomic<void*> handle{nullptr};
  std::atomic<uint64_t> address{0}, bytes{0};
};
std::array<Slot, 256> g_slots;

Slot& SlotOf(void* handle) { return g_slots[(reinterpret_cast<uintptr_t>(handle) * 0x9e3779b97f4a7c15u) >> 56]; }

void Drop(void* handle) {
  Slot& slot = SlotOf(handle);
  if (slot.handle.load(std::memory_order_relaxed) == handle) slot.handle.store(nullptr, std::memory_order_release);
}

}  // namespace

Workspace WorkspaceOf(void* handle) {
  Slot& slot = SlotOf(handle);
  if (!handle || slot.handle.load(std::memory_order_acquire) != handle) return {};
  return {slot.address.load(std::memory_order_relaxed), slot.bytes.load(std::memory_order_relaxed)};
}

namespace entry {

int cublasSetWorkspace_v2(void* handle, void* workspace, std::size_t bytes) {
  auto* const real = reinterpret_cast<abi::SetWorkspace*>(LibraryReal());
  const int status = real(handle, workspace, bytes);
  if (status == 0 && handle) {
    Slot& slot = SlotOf(handle);
    slot.address.store(Address(workspace), std::memory_order_relaxed);
    slot.bytes.store(workspace ? bytes : 0, std::memory_order_relaxed);
    slot.handle.store(handle, std::memory_order_release);
  }
  return status;
}

// By its documentation SetStream gives the handle back the library's own workspace.
int cublasSetStream_v2(void* handle, void* stream) {
  auto* const real = reinterpret_cast<abi::SetStream*>(LibraryReal());
  Drop(handle);
  return real(handle, stream);
}

int cublasDestroy_v2(void* handle) {
  auto* const real = reinterpret_cast<abi::Destroy*>(LibraryReal());
  Drop(handle);
  return real(handle);
}

}  // namespace entry
}  // namespace sluice::libraries
