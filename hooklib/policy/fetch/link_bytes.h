// Link bytes: the bytes of a chunk that launches use in one iteration (iterations.h). If the chunk is host-resident,
// they cross the link in each iteration. link_bytes and its neighbours in Chunk. Not thread-safe: the device's lock is
// held.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_

#include <cstdint>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// Bytes that cross the link for a launch that names so many. `sparse`: launches of its kind touch little of their set
// (launch_classifier.h).
inline uint32_t OverLink(uint32_t named, bool sparse) { return named >> (sparse ? 4 : 0); }
// The same for the launch that has the chunk in its set now.
inline uint32_t OverLink(const Chunk& chunk, bool sparse) { return OverLink(chunk.named_bytes, sparse); }

inline void CountLinkBytes(Chunk* chunk, uint32_t bytes, uint64_t iteration) {
  if (chunk->link_iteration != iteration) {
    chunk->previous_link_bytes = chunk->link_iteration + 1 == iteration ? chunk->link_bytes : 0;
    chunk->link_bytes = chunk->top_user_bytes = 0;
    chunk->link_iteration = iteration;
  }
  chunk->link_bytes += bytes;
}

// Behind CountLinkBytes: which launch named most of the chunk.
inline void NoteNamer(Chunk* chunk, uint64_t id, bool sparse) {
  const uint32_t bytes = OverLink(*chunk, sparse);
  if (bytes <= chunk->top_user_bytes) return;
  chunk->top_user_bytes = bytes;
  chunk->top_user_id = id;
}

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_
