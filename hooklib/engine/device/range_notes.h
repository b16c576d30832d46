// Advice that the application gave for ranges of its managed memory, and the location of its last prefetch. The
// driver's own answers would include the engine's advice and transfers.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_RANGE_NOTES_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_RANGE_NOTES_H_

#include <cstdint>
#include <optional>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/types.h"

namespace sluice {

struct RangeNotes {
  bool read_mostly = false;
  CUmemLocation preferred{};      // of type INVALID: none
  CUmemLocation last_prefetch{};  // of type INVALID: none
  uint64_t accessed_by = 0;       // bit 0: the CPU; bit n + 1: device n
};

// All thread-safe. `range` lies in the application's block `block`. As the driver does, pages of 4 KiB that it touches
// count whole.
void NoteAdviceOf(memory::Extent range, memory::Extent block, CUmem_advise advice, CUmemLocation location);
void NotePrefetchOf(memory::Extent range, memory::Extent block, CUmemLocation location);
void ForgetNotesOf(memory::Extent block);
// The notes that hold for the whole range.
RangeNotes NotesOf(memory::Extent range, memory::Extent block);

// Writes an attribute as cuMemRangeGetAttribute does. Nothing: an attribute that the notes do not hold.
std::optional<CUresult> AnswerRange(const RangeNotes& notes, CUmem_range_attribute attribute, void* data, size_t bytes);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_RANGE_NOTES_H_
