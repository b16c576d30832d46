// Decides the meaning of a ResourceClaim's allocation on this node: cards, the share of each, settings. Pure.
#ifndef SLUICE_DEVICEPLUGIN_DRA_CLAIM_H_
#define SLUICE_DEVICEPLUGIN_DRA_CLAIM_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/settings/settings.h"
#include "deviceplugin/decide/cards.h"
#include "deviceplugin/decide/grant.h"
#include "sluice/names.h"

namespace sluice::deviceplugin::dra {

// The device taint of an unhealthy card; its value is the card's reason.
inline constexpr std::string_view kUnhealthyTaint = SLUICE_DOMAIN "/unhealthy";

struct ClaimRef {
  std::string name_space, name, uid;
  bool operator==(const ClaimRef&) const = default;
};

// One device that the scheduler allocated to the claim.
struct ClaimDevice {
  std::string request;  // without the name of an alternative
  std::string pool, device, share_id;
  std::string uuid;      // of the card
  bool admin = false;    // for monitoring: takes no share
  uint64_t memory = 0;   // bytes; 0: the API server booked no capacity, and the device is the claim's alone
  uint32_t compute = 0;  // percent; 0: as above
  bool operator==(const ClaimDevice&) const = default;
};

// A claim as sluice serves it: one share, of the same size on each card.
struct ClaimShare {
  ClaimRef claim;
  std::string pod;        // if exactly one pod has reserved the claim
  std::string container;  // if the webhook made the claim for one
  std::string preload;    // libraries for LD_PRELOAD behind sluice's
  std::vector<ClaimDevice> devices;
  std::vector<GrantedCard> cards;  // without those of devices for monitoring; ordered by uuid
  uint64_t memory_bytes = 0;       // budget on each card; 0: the whole card
  settings::Settings settings;     // with gpu-memory and compute-request
};

// A name that the API accepts for a device: the uuid in lower case. Empty: the uuid cannot be one.
std::string DeviceName(std::string_view uuid);

// Bytes that claims may consume: without the driver's reserve and `reserve`, in whole MiB.
uint64_t MemoryCapacity(const Card& card, uint64_t reserve);

// Reads the object that the API server returned. Errors are Refusals (decide/grant.h): claim-gone, claim-unallocated,
// unknown, unhealthy, not-offered, claim-config, claim-size. A claim that is prepared already keeps cards that have
// become unhealthy (`keeps_unhealthy`). So does one whose request tolerates the taint, in either effect.
absl::StatusOr<ClaimShare> ReadClaim(const nlohmann::json& claim, const ClaimRef& ref, const std::string& pool,
                                     const Inventory& inventory, uint64_t reserve, bool keeps_unhealthy = false);

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_CLAIM_H_
