// The names of hooklib/memory that policy code uses without qualification: every line of a decision is about chunks,
// extents and streams.
#ifndef SLUICE_HOOKLIB_POLICY_MEMORY_NAMES_H_
#define SLUICE_HOOKLIB_POLICY_MEMORY_NAMES_H_

#include "hooklib/memory/chunk_table.h"
#include "hooklib/memory/copied_ranges.h"
#include "hooklib/memory/fences.h"
#include "hooklib/memory/timeline.h"
#include "hooklib/memory/types.h"

namespace sluice::policy {

using memory::Chunk;
using memory::ChunkTable;
using memory::CopiedRanges;
using memory::Epoch;
using memory::Extent;
using memory::Fences;
using memory::kChunkBytes;
using memory::kNever;
using memory::Mark;
using memory::Overlap;
using memory::RoundDown;
using memory::RoundUp;
using memory::Seq;
using memory::StreamId;
using memory::Timeline;
using memory::Va;

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_MEMORY_NAMES_H_
