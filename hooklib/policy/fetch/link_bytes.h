// What launches use of a chunk in a window (iterations.h), which would cross the link in each round if it lay in host
// memory: link_bytes and its neighbours in Chunk. Bytes. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_

#include <cstdint>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// What a launch that names so much would bring over the link. `sparse`: launches of its kind touch little of what they
// name (launch_classifier.h).
inline uint32_t OverLink(uint32_t named, bool sparse) { return named >> (sparse ? 4 : 0); }
// The same of the launch whose set has the chunk now.
inline uint32_t OverLink(const Chunk& chunk, bool sparse) { return OverLink(chunk.named_bytes, sparse); }

inline void CountLinkBytes(Chunk* chunk, uint32_t bytes, uint64_t window) {
  if (chunk->link_iteration != window) {
    chunk->previous_link_bytes = chunk->link_iteration + 1 == window ? chunk->link_bytes : 0;
    chunk->link_bytes = chunk->top_user_bytes = 0;
    chunk->link_iteration = window;
  }
  chunk->link_bytes += bytes;
}

// After that: which launch named most of it.
inline void NoteNamer(Chunk* chunk, uint64_t id, bool sparse) {
  const uint32_t bytes = OverLink(*chunk, sparse);
  if (bytes <= chunk->top_user_bytes) return;
  chunk->top_user_bytes = bytes;
  chunk->top_user_id = id;
}

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_
