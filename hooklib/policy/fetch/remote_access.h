// Chunks that launches use remotely or leave to demand faults instead of a fetch (remote_access.cc), the exchange of
// resident chunks for remote ones (placement.cc), and graphs larger than the capacity (oversized_graph.cc).
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_REMOTE_ACCESS_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_REMOTE_ACCESS_H_

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "hooklib/policy/touched/touched_chunks.h"

namespace sluice::policy {

class RemoteAccess : public TouchedChunks {
 public:
  // --- probes: launches that are timed ---
  // Whether launches like this one use their missing chunks remotely.
  bool UsesRemoteAccess(const LaunchProbe& probe);
  // The time of a probe. True where this settles that such launches are left to demand faults.
  bool NoteMeasured(const LaunchProbe& probe, uint64_t ns);
  // The time is known, or never will be.
  void NoteAnswered(const LaunchProbe& probe) { classifier_.NoteAnswered(probe); }
  // Launches of this id should wait for the timed ones, which decide about the next.
  bool ShouldAwaitProbes(uint64_t id) const { return classifier_.ShouldAwait(id); }
  // They have waited, or will not any longer.
  void NoteAwaitedProbes(uint64_t id) { classifier_.NoteAwaited(id); }
  // The same for graphs larger than the capacity (graph_strategy.h).
  const GraphStrategies& graph_strategies() const { return graph_strategies_; }
  bool NoteMeasured(const GraphProbe& probe, uint64_t ns) { return graph_strategies_.NoteMeasured(probe, ns); }
  void NoteGapAfter(const GraphProbe& probe, uint64_t gap_ns, uint64_t eviction_ns);
  // Graphs of this id are probed: all work before them is to be over, since finished transfers decide which bytes they
  // move.
  bool probes_graph_strategy(uint64_t id) const { return graph_strategies_.IsProbing(id); }

  std::vector<PlacementRun> ListPlacement();
  // The host has waited until all that it had queued was over.
  void NoteHostSync();

 protected:
  using TouchedChunks::TouchedChunks;

  // --- remote_access.cc ---
  void SelectRemote(StreamId stream, uint64_t id, bool oversize);
  void EndIteration(const StreamQueues& queues);
  bool StaysRemote(const Predictor& predictor, const Chunk& chunk, uint64_t id);
  std::pair<size_t, size_t> DominantOperand() const;
  // --- placement.cc ---
  using Exchange = std::pair<Chunk*, Chunk*>;  // a resident chunk, and the host-resident one that takes its place
  void ExchangePlacement(bool repeats);
  uint32_t LinkBytesOf(const Chunk& chunk) const;
  uint32_t UseOf(const Chunk& chunk) const;
  bool IsCold(const Chunk& chunk) const;
  bool IsUnused(const Chunk& chunk) const;
  std::vector<Exchange> ExchangeByUse(bool repeats, std::vector<Chunk*>* resident, std::vector<Chunk*>* remote);
  void ExchangeByOrder(std::span<Chunk*> resident, std::span<Chunk*> remote, std::vector<Exchange>* exchanges);
  std::optional<uint64_t> PositionInHostRun(const Chunk& chunk) const;
  bool KeepsColdRemote(Chunk* chunk, uint64_t id);
  void MarkProbeVictims(uint64_t id);
  // --- oversized_graph.cc ---
  void ApplyStrategy(GraphStrategy strategy, StreamId stream, uint64_t id);
  uint64_t BytesUsedSinceGraph(uint64_t max_bytes) const;
  uint64_t MaxSmallOperandBytes() const;
  bool SizesDiffer(uint64_t capacity) const;
  void SplitHotCold(StreamId stream, uint64_t fits, uint64_t more, size_t hot_chunks, bool fetches);
  void NoteRemainder(const Chunk& chunk);
  size_t SmallOperandsFirst(uint64_t fits);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_REMOTE_ACCESS_H_
