// Link bytes: the bytes of a chunk that launches use in one iteration (iterations.h). If the chunk is host-resident,
// they cross the link in each iteration. link_bytes and its neighbours in Chunk. Not thread-safe: the device's lock is
// held.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_

#include <algorithm>
#include <compare>
#include <cstdint>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/cost/link_model.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// A part of the chunks that a launch names, in 64ths: 1 to 64.
struct Share {
  uint8_t parts = kWhole;
  static constexpr uint8_t kWhole = 64;
  // `part` of `whole`, rounded up; all of it, if `part` is more.
  static Share Of(uint64_t part, uint64_t whole) {
    if (part >= whole) return {};
    return {static_cast<uint8_t>(std::max<uint64_t>(1, (part * kWhole + whole - 1) / whole))};
  }
  // The launch touches little of its set.
  bool IsLittle() const { return parts <= margins::kSparse.Of(kWhole); }
  // It touches as good as all of it: the prices of the link are not known better.
  bool IsMost() const { return parts >= margins::kDense.Of(kWhole); }
  auto operator<=>(const Share&) const = default;
};

// Bytes that cross the link for a launch that names so many of a chunk. `touched`: launches of its kind touch so much
// of their chunks (launch_classifier.h).
inline uint32_t OverLink(uint32_t named, Share touched) {
  return std::min<uint32_t>(named, kChunkBytes / Share::kWhole * touched.parts);
}
// The same for the launch that has the chunk in its set now.
inline uint32_t OverLink(const Chunk& chunk, Share touched) { return OverLink(chunk.named_bytes, touched); }

// Notes of the iteration before may come late (steady_sets.h).
inline void CountLinkBytes(Chunk* chunk, uint32_t bytes, uint64_t iteration) {
  if (chunk->link_iteration > iteration) {
    if (chunk->link_iteration == iteration + 1)
      chunk->previous_link_bytes += std::min(bytes, UINT32_MAX - chunk->previous_link_bytes);
    return;
  }
  if (chunk->link_iteration != iteration) {
    chunk->previous_link_bytes = chunk->link_iteration + 1 == iteration ? chunk->link_bytes : 0;
    chunk->link_bytes = chunk->top_user_bytes = 0;
    chunk->link_iteration = iteration;
  }
  chunk->link_bytes += std::min(bytes, UINT32_MAX - chunk->link_bytes);
}

// Behind CountLinkBytes: which launch named most of the chunk.
inline void NoteNamer(Chunk* chunk, uint64_t id, Share touched) {
  const uint32_t bytes = OverLink(*chunk, touched);
  if (bytes <= chunk->top_user_bytes) return;
  chunk->top_user_bytes = bytes;
  chunk->top_user_id = id;
}

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_LINK_BYTES_H_
