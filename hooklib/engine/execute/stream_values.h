// Values in memory that streams and graphs write and wait for. In managed memory the driver refuses them.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_STREAM_VALUES_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_STREAM_VALUES_H_

#include <algorithm>

#include "hooklib/engine/device/devices.h"

namespace sluice {

// Device memory of the application that is managed memory here. Thread-safe, as everything below.
inline bool IsManagedHere(CUdeviceptr at) {
  if (!MayBeTracked(at)) return false;
  const std::optional<TrackedAddress> block = FindTracked(at);
  return block && !block->allocation.app_managed && !block->allocation.unevictable;
}
inline bool IsWrite(const CUstreamBatchMemOpParams& op) {
  return op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}
inline bool IsWait(const CUstreamBatchMemOpParams& op) {
  return op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}
// Memory of a pool: the driver refuses values in it, wherever it lies here (docs/lab/2026-11-25-differential-h100.md).
inline bool IsOfPool(CUdeviceptr at) {
  if (!MayBeTracked(at)) return false;
  const std::optional<TrackedAddress> block = FindTracked(at);
  return block && block->allocation.stream_ordered;
}
// Both kinds have their address in the same place.
inline bool AnyInPool(const CUstreamBatchMemOpParams* list, unsigned count) {
  const auto is_in = [](const CUstreamBatchMemOpParams& op) {
    return (IsWrite(op) || IsWait(op)) && IsOfPool(op.writeValue.address);
  };
  return list && std::any_of(list, list + count, is_in);
}
inline bool NamesManaged(const CUstreamBatchMemOpParams& op) {
  return (IsWrite(op) || IsWait(op)) && IsManagedHere(op.writeValue.address);
}
inline bool AnyNamesManaged(const CUstreamBatchMemOpParams* list, unsigned count) {
  return list && std::any_of(list, list + count, NamesManaged);
}
// Says once that nothing replaces a wait of a graph.
void LogWaitRefused();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_STREAM_VALUES_H_
