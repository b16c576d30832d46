// The link model: the price of each way to bring memory to a launch. Every threshold of the policy that reckons with a
// rate of the link is derived from it.
//
// Prices are nanoseconds a GiB; mapping is priced by the chunk. The initial ones are an H200's (docs/design/driver.md).
// Fetches that run correct them: a link at half the rate moves and reads remotely at half the rate. No clock, no CUDA.
// Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_COST_LINK_MODEL_H_
#define SLUICE_HOOKLIB_POLICY_COST_LINK_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// One step of a transfer.
enum class LinkStep : uint8_t {
  kFetch,       // to the GPU
  kWriteBack,   // to the host, with contents
  kDrop,        // of a duplicate: its host copy is clean
  kDuplicate,   // the advice that makes a duplicate, in host memory
  kDiscard,     // of contents that are dead
  kPopulate,    // of memory without contents, on the GPU
  kRemoteRead,  // by a kernel, once, in host memory
  kRemotePass,  // the same, where it also writes or may write
  kFault,       // by demand faults, of the pages that a kernel touches
};
inline constexpr size_t kLinkStepCount = 9;

// How memory may be at hand for its next uses.
enum class Residence : uint8_t {
  kResident,    // it stays
  kSwapped,     // it is evicted with its contents, and is fetched whole
  kDuplicated,  // it is evicted as a duplicate, and is fetched as one
  kDiscarded,   // it is discarded, and is populated
  kRemote,      // it is used in host memory
  kFaulted,     // it is evicted, and faults bring the touched pages
};

// A margin: a price counts as `numerator` / `denominator` of itself.
struct Margin {
  uint64_t numerator, denominator;
  uint64_t Of(uint64_t ns) const { return ns * numerator / denominator; }
};

// Every margin of the policy's comparisons of prices.
namespace margins {
// A launch is timed while other transfers share the link with it: remote use is still right where it takes so much of
// its alternative's price. With 1 here, blocks that are used in order no longer count as streaming
// (docs/lab/2026-11-24-thresholds-for-fast-eviction.md).
inline constexpr Margin kBusyLink{7, 4};
// A launch passed over its set once, or less, if it took at most so much of one pass.
inline constexpr Margin kOnePass{9, 8};
// A launch touched little of its set if it took at most so much of one pass.
inline constexpr Margin kSparse{1, 4};
// A launch touched most of its set if faults took at least so much of the set's price.
inline constexpr Margin kDense{3, 4};
// One residence replaces another only where it is cheaper by so much: passes of an iteration differ by one.
inline constexpr Margin kHysteresis{4, 3};
// Machines differ by so much in serving faults: the most bytes that they bring, or the most that they cost.
inline constexpr Margin kFaultSpread{9, 8};
}  // namespace margins

class LinkModel {
 public:
  LinkModel() { SetPrices(); }
  // Whether the driver's call writes back, at less than half of the rate of several threads, and in turn with fetches.
  void set_slow_write_back(bool slow) {
    if (slow == slow_write_back_) return;
    slow_write_back_ = slow;
    SetPrices();
  }
  bool slow_write_back() const { return slow_write_back_; }

  uint64_t NsPerGiB(LinkStep step) const { return prices_[static_cast<size_t>(step)]; }
  uint64_t Ns(LinkStep step, uint64_t bytes) const { return Scale(NsPerGiB(step), bytes); }
  uint64_t map_chunk_ns() const { return kMapChunkNs; }
  uint64_t MapNs(uint64_t bytes) const { return bytes / kChunkBytes * kMapChunkNs; }
  // Bytes that a step moves in this time.
  uint64_t Bytes(LinkStep step, uint64_t ns) const { return ((ns << 20) / NsPerGiB(step)) << 10; }

  // The price of one residence of `bytes` between two uses that lie an iteration apart. `used`: bytes that launches use
  // of it meanwhile, those of each pass: passes x bytes where each of them uses the whole.
  uint64_t Cost(Residence residence, uint64_t bytes, uint64_t used) const;
  // A launch is timed while other transfers share the link: the price of its alternative, to be compared with its time.
  // Write-backs by several threads take half of the link from it, those by the driver's call next to nothing.
  uint64_t OnBusyLink(uint64_t ns) const { return slow_write_back_ ? ns : margins::kBusyLink.Of(ns); }
  // Whether memory is cheaper in one residence than in another by the hysteresis.
  bool IsCheaper(Residence residence, Residence than, uint64_t bytes, uint64_t used) const {
    return margins::kHysteresis.Of(Cost(residence, bytes, used)) <= Cost(than, bytes, used);
  }

  // A fetch of `bytes` with contents took `ns` on the link, beside whatever else used it. The price of the link follows
  // if kMeasurements in a row lie beyond kNoise on one side: it becomes the mildest of them, and stays within kBound
  // of the initial price.
  void NoteFetch(uint64_t bytes, uint64_t ns);
  // The link's price as parts of kWhole of the initial one.
  static constexpr uint64_t kWhole = 1024;
  uint64_t link_scale() const { return link_scale_; }

  static constexpr uint32_t kMeasurements = 8;
  static constexpr Margin kNoise{3, 2};
  static constexpr uint64_t kBound = 4;
  static constexpr uint64_t kMinFetchBytes = uint64_t{16} << 20;  // less says more of the call than of the link

 private:
  static constexpr uint64_t kMapChunkNs = 100'000;
  static uint64_t Scale(uint64_t ns_per_gib, uint64_t bytes) {
    // In KiB: no product of a GPU's memory and a price exceeds 64 bits.
    return ns_per_gib * (bytes >> 10) >> 20;
  }

  void SetPrices();

  std::array<uint64_t, kLinkStepCount> prices_;
  bool slow_write_back_ = true;
  uint64_t link_scale_ = kWhole;
  uint64_t mildest_ = 0;  // of the measurements in a row, as link_scale_
  uint32_t beyond_ = 0;   // measurements in a row on one side
  bool above_ = false;    // which
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_COST_LINK_MODEL_H_
