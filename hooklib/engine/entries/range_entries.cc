// Queries about ranges of managed memory. Those about the application's own are answered from its own advice: the
// driver's answers would include the engine's advice and transfers. Other tracked memory is no managed memory to the
// application.
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/range_notes.h"

namespace sluice {

namespace {

// The answer of one attribute; nothing: the driver's is right.
std::optional<CUresult> Answer(const std::optional<TrackedAddress>& block, void* data, size_t data_bytes,
                               CUmem_range_attribute attribute, CUdeviceptr pointer, size_t bytes) {
  if (!block) return std::nullopt;
  const memory::Extent whole{block->base, block->allocation.bytes};
  if (!block->allocation.app_managed) return CUDA_ERROR_INVALID_VALUE;
  if (!data || bytes == 0) return std::nullopt;
  if (bytes > whole.end() - pointer) return CUDA_ERROR_INVALID_VALUE;  // the arena's next bytes are another's
  return AnswerRange(NotesOf({pointer, bytes}, whole), attribute, data, data_bytes);
}

std::optional<TrackedAddress> BlockOf(CUdeviceptr pointer) {
  return MayBeTracked(pointer) ? FindTracked(pointer) : std::nullopt;
}

}  // namespace

namespace entry {

CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr pointer,
                                size_t bytes) {
  if (IsFreeInArena(pointer)) return CUDA_ERROR_INVALID_VALUE;
  if (const auto answer = Answer(BlockOf(pointer), data, data_bytes, attribute, pointer, bytes)) return *answer;
  return g_real.cuMemRangeGetAttribute(data, data_bytes, attribute, pointer, bytes);
}

CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* attributes, size_t count,
                                 CUdeviceptr pointer, size_t bytes) {
  if (IsFreeInArena(pointer)) return CUDA_ERROR_INVALID_VALUE;
  const auto block = BlockOf(pointer);
  if (!block || !data || !data_bytes || !attributes || count == 0)
    return g_real.cuMemRangeGetAttributes(data, data_bytes, attributes, count, pointer, bytes);
  for (size_t i = 0; i < count; ++i) {
    const auto answer = Answer(block, data[i], data_bytes[i], attributes[i], pointer, bytes);
    const CUresult result =
        answer ? *answer : g_real.cuMemRangeGetAttribute(data[i], data_bytes[i], attributes[i], pointer, bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace entry
}  // namespace sluice
