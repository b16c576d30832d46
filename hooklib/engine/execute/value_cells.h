// Words of pinned memory that hold values on their way into memory that moves: a copy of 8 bytes writes them at once,
// and its source must last until then.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_CELLS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_CELLS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "hooklib/engine/device/streams.h"

namespace sluice::value_cells {

struct Cell {
  uint64_t* value = nullptr;  // 8 bytes, the word that tells of the copy behind which it stands, and an unused one
  CUdeviceptr passed = 0;     // the first of these words, for the GPU
  uint32_t turn = 0;          // its newest value
  uint64_t place = 0;         // of which context's memory

  CUdeviceptr at() const { return passed - sizeof(uint64_t); }  // `value`, for the GPU
  void* unused() const { return reinterpret_cast<uint32_t*>(value) + 3; }
};

// Cells of the context, which is the current one; empty: there are none. All of this is thread-safe.
std::vector<Cell> Take(CUcontext context, size_t count);
// 8 bytes of managed memory in the context, which is the current one, that no program reads; 0: there are none.
CUdeviceptr Sink(CUcontext context);
// Nothing reads them any more. Makes no call of the driver's.
void GiveBack(const std::vector<Cell>& cells);

// Queues `copy(source)` of the value, 8 bytes, on the stream, which is not captured. An error is the copy's, or
// CUDA_ERROR_NOT_SUPPORTED: there is no cell.
CUresult Send(const Stream& stream, CUstream handle, bool per_thread, uint64_t value,
              const std::function<CUresult(const void*)>& copy);

// The context is gone, and its cells with it.
void ForgetContext(CUcontext context);

}  // namespace sluice::value_cells

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_CELLS_H_
