// Residency's notes on single chunks (residency.h): their use, their place between host and GPU, and the end of each.
// Of the decisions only the comparisons of two residences are here, which eviction, prefetch and remote access share.
#ifndef SLUICE_HOOKLIB_POLICY_CHUNK_NOTES_H_
#define SLUICE_HOOKLIB_POLICY_CHUNK_NOTES_H_

#include "hooklib/policy/plan_builder.h"

namespace sluice::policy {

class ChunkNotes : public PlanBuilder {
 public:
  // Whether launches fault on memory that none of them names: through pointers that lie on the GPU.
  bool watches_unnamed() const { return now_ < unnamed_.watched_until; }

 protected:
  using PlanBuilder::PlanBuilder;

  bool IsLongLived(const Chunk& chunk, uint64_t id) const { return iterations_.IsLongLived(chunk, id, now_); }
  bool IsBeingProbed(const Chunk& chunk);
  bool IsUsedElsewhere(const Chunk& chunk);
  bool IsUsedSinceGraph(const Chunk& chunk) const { return chunk.last_use > last_graph_at_; }
  // The comparisons.
  bool CheaperRemote(const Chunk& chunk) const;
  bool CheaperSwapped(const Chunk& chunk) const;

  void NoteUse(Chunk* chunk, Mark mark);
  void NoteRequired(Chunk* chunk, uint64_t id, uint64_t iterations);
  void NoteEvicted(Chunk* chunk);
  void NoteSwappedIn(Chunk* chunk);
  void NoteUnnamedEviction(Chunk* chunk);
  void MapRemote(Chunk* chunk);
  void UnmapRemote(Chunk* chunk);
  void UnmapForFetch(Chunk* chunk);
  // Its fetch is for launches to come. Until one of the fetch's stream has waited for it nothing orders an eviction
  // behind it.
  void NotePrefetched(Chunk* chunk);
  void EndPrefetch(Chunk* chunk);
  void EndPromotion(Chunk* chunk);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_CHUNK_NOTES_H_
