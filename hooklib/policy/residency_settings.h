// The settings of Residency (residency.h). The engine changes them between launches, with the device's lock held.
#ifndef SLUICE_HOOKLIB_POLICY_RESIDENCY_SETTINGS_H_
#define SLUICE_HOOKLIB_POLICY_RESIDENCY_SETTINGS_H_

#include <utility>

#include "hooklib/policy/residency_state.h"

namespace sluice::policy {

class ResidencySettings : protected ResidencyState {
 public:
  void set_capacity(uint64_t bytes) {
    if (bytes < capacity_) {
      if (!fault_residue_.empty()) fault_residue_.SweepSoon();  // all of it is evicted now
      steady_sets_.NoteChange(now_);                            // a graph may need samples
    }
    capacity_ = bytes;
  }
  void set_prefetch(Prefetch mode) {
    if (std::exchange(prefetch_, mode) != mode) steady_sets_.NoteChange(now_);  // samples may begin
  }
  void set_can_discard(bool can) { can_discard_ = can; }
  bool can_discard() const { return can_discard_; }
  // Chunks in host memory keep their contents when they are freed: a discard would save nothing where PopulateDiscarded
  // is called for each allocation.
  void set_discards_on_host(bool may) { discards_on_host_ = may; }
  // The prices of transfers, which those that run correct.
  LinkModel& link() { return link_; }
  // The capacity is being raised: nothing live is evicted for a prefetch, since room comes by itself.
  void set_budget_rising(bool rising) { budget_rising_ = rising; }
  // Whether chunks that a launch overwrites whole are repopulated. Needs discard.
  void set_repopulates(bool may) { repopulates_ = may; }
  // Whether only the stream of the next Prepare works on the device, and takes discards in its order: chunks freed on
  // it need not be waited for then.
  void set_in_order(bool in_order) { in_order_ = in_order; }
  // Whether streaming launches may leave their chunks in host memory.
  void set_remote_access(bool may) { may_map_remote_ = may; }
  // More than the link moves in the time of a few launches only displaces chunks that are used sooner.
  void set_max_prefetch_bytes(uint64_t bytes) { max_prefetch_bytes_ = bytes; }
  // Of a piece of a step that evicts and fetches.
  void set_piece_bytes(uint64_t bytes) { piece_chunks_ = bytes / kChunkBytes; }
  // Bytes that the GPU itself can hold.
  void set_max_resident(uint64_t bytes) { max_resident_bytes_ = bytes; }
  // The part of the capacity that is the container's own; the rest is lent. Graphs beyond it are sampled
  // (touched/touched_chunks.cc).
  void set_share(uint64_t bytes) {
    if (std::exchange(share_bytes_, bytes) != bytes) steady_sets_.NoteChange(now_);
  }
  // Whether ListPlacement is to name launches.
  void set_names_launches(bool does) { names_launches_ = does; }

 protected:
  using ResidencyState::ResidencyState;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_RESIDENCY_SETTINGS_H_
