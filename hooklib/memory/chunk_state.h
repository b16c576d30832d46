// The state of a chunk: its place, its mapping in host memory, its contents, and its transfers in flight. These
// members change only by the functions here, which assert that the change is legal.
//
//              kAbsent ── NoteFaultResidue ──► kPartlyFaulted     no budget is counted for these two
//               ▲  │  ◄── EndFaultResidue ──         │
//         Leave │  └───────────┬─────────────────────┘
//               │              ▼ FaultIn
//              kResident ◄── kFaultedIn                           these count as resident
//                      FetchWhole
//
// A transfer is over when the GPU is done with its operation, so a chunk is being fetched or evicted as long as the
// timeline says so (memory/timeline.h): a resident chunk with a fetch in flight, an absent one with an eviction. Used
// remotely is a mapped chunk that is not resident. A resident one may keep its mapping.
#ifndef SLUICE_HOOKLIB_MEMORY_CHUNK_STATE_H_
#define SLUICE_HOOKLIB_MEMORY_CHUNK_STATE_H_

#include <cstdint>

#include "hooklib/memory/chunk_transfers.h"

namespace sluice::memory {

class ChunkState : public ChunkTransfers {
 public:
  // --- place: only speed depends on it ---
  // Assumed to be on the GPU, and counted. False: its pages there, if any, are fault residue.
  bool resident() const { return place_ >= Place::kFaultedIn; }
  bool is_whole() const { return place_ == Place::kResident; }  // resident by a fetch; faults bring touched pages alone
  bool has_fault_residue() const { return place_ == Place::kPartlyFaulted; }
  void FaultIn() {  // faults bring it, or a fetch that FetchWhole tells of
    Expect(!resident());
    place_ = Place::kFaultedIn;
  }
  void FetchWhole() {
    Expect(resident());
    place_ = Place::kResident;
  }
  void Leave() {
    Expect(resident());
    place_ = Place::kAbsent;
  }
  void NoteFaultResidue() {
    Expect(!resident());
    place_ = Place::kPartlyFaulted;
  }
  void EndFaultResidue() {  // it is evicted or discarded
    if (has_fault_residue()) place_ = Place::kAbsent;
  }

  // --- mapping in host memory ---
  bool mapped_remote() const { return mapping_ >= Mapping::kMapped; }
  // It was mapped since it last left the GPU. An end of the advice need not end the mapping, so launches that touch the
  // chunk need not fault.
  bool maybe_mapped() const { return mapping_ != Mapping::kNone; }
  bool probed() const {
    return mapping_ == Mapping::kProbed;
  }  // left there by a launch that is timed, not fetched since
  void Map() {
    if (!mapped_remote()) mapping_ = Mapping::kMapped;
  }
  void Unmap() {
    if (mapped_remote()) mapping_ = Mapping::kEnded;
  }
  void SetProbed(bool probed) {
    Expect(mapped_remote());
    mapping_ = probed ? Mapping::kProbed : Mapping::kMapped;
  }
  void EndProbe() {
    if (probed()) mapping_ = Mapping::kMapped;
  }
  void ForgetMapping() {  // of a chunk that leaves the GPU
    if (mapping_ == Mapping::kEnded) mapping_ = Mapping::kNone;
  }

  // --- contents ---
  // Holds bytes that may matter. False: discarded or never written, so that a fetch moves nothing.
  bool has_contents() const { return contents_ != Contents::kNone; }
  bool duplicate() const { return contents_ == Contents::kDuplicated; }  // a fetch kept the host copy (read_mostly.cc)
  bool discarded() const { return discarded_; }  // and no fetch since is known to be over (discarded.cc)
  void NoteContents() { contents_ = static_cast<Contents>(static_cast<uint8_t>(contents_) | 1); }
  void Duplicate() {
    Expect(has_contents() && !resident());
    contents_ = Contents::kDuplicated;
  }
  void EndDuplicate() {
    Expect(duplicate());
    contents_ = Contents::kDirty;
  }
  void Discard() {
    Expect(!duplicate() && !has_leave_pending());
    discarded_ = true;
    contents_ = Contents::kNone;
    EndFetch();
    EndEviction();
    EndProbe();
    EndFaultResidue();
  }
  void EndDiscard() { discarded_ = false; }

  // The chunk has left, or will: see ChunkTransfers.
  void BeginEviction(StreamId stream, uint64_t op) {
    Expect(!resident());
    SetEviction(stream, op);
  }

 private:
  enum class Place : uint8_t { kAbsent, kPartlyFaulted, kFaultedIn, kResident };
  enum class Mapping : uint8_t { kNone, kEnded, kMapped, kProbed };
  enum class Contents : uint8_t { kNone = 0, kDirty = 1, kDuplicated = 3 };

  Place place_ = Place::kAbsent;
  Mapping mapping_ = Mapping::kNone;
  Contents contents_ = Contents::kNone;
  bool discarded_ = false;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_CHUNK_STATE_H_
