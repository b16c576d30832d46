// The ResourceSlice (resource.k8s.io/v1) that offers this node's cards to the scheduler. Pure.
#ifndef SLUICE_DEVICEPLUGIN_DRA_RESOURCE_SLICE_H_
#define SLUICE_DEVICEPLUGIN_DRA_RESOURCE_SLICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "deviceplugin/decide/cards.h"

namespace sluice::deviceplugin::dra {

struct SliceInput {
  std::string node, node_uid;  // an empty uid: the slice gets no owner
  Inventory inventory;
  uint64_t reserve = 0;  // bytes of each card that no claim gets, beside the driver's own
  // Units (percent) of each card that containers still hold from the device plugin, by uuid. A claim cannot get them.
  std::map<std::string, int> held_units;
  // Writes a slice again whose fields the API server dropped: the feature gate may be on by now.
  bool asks_for_sharing = false;
  // The API server keeps taints (feature gate DRADeviceTaints), and the effect that an unhealthy card's taint has.
  bool keeps_taints = false;
  std::string taint_effect = "NoSchedule";
};

// "<node>-sluice.dev", within the 253 characters of an object's name.
std::string SliceName(std::string_view node);

// The API's semantic version from the driver's: "580.95.05" is 580.95.5. Empty: it is none.
std::string SemanticVersion(std::string_view driver);

// Bytes that claims may have of a card of which containers of the device plugin still hold `units`. 0: none.
uint64_t ClaimableMemory(const Card& card, uint64_t reserve, int units);

// Healthy cards, and unhealthy ones with a taint where the API server keeps taints. A card that is not listed gets no
// new claim either, and running ones keep it, but neither scheduler nor users see why.
nlohmann::json MakeDevices(const SliceInput& input);

nlohmann::json MakeSlice(const SliceInput& input, int64_t generation);

struct SlicePlan {
  enum class Act { kNothing, kCreate, kUpdate } act = Act::kNothing;
  std::shared_ptr<nlohmann::json> slice;  // to create, or to write over the one of its name
  std::vector<std::string> remove;        // names of other slices of this driver and node
};

// `existing`: all slices of this driver on this node. The generation rises with every change of the pool.
SlicePlan PlanSlices(const SliceInput& input, const std::vector<nlohmann::json>& existing);

// A slice to be created in a dry run alone: its one device shows whether the API server keeps taints.
nlohmann::json TaintProbe(const std::string& node);
bool KeepsTaints(const nlohmann::json& stored);

// Whether the API server kept the slice's fields of sharing. It drops fields of a feature gate that is off
// (DRAConsumableCapacity), and claims then get whole cards.
bool MayShare(const nlohmann::json& stored);

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_RESOURCE_SLICE_H_
