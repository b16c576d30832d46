// Chooses which units of which card a container gets, within one node. Pure. (scheduler/ chooses the node.)
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_UNIT_CHOICE_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_UNIT_CHOICE_H_

#include <span>
#include <string>
#include <vector>

#include "scheduler/placement/node_model.h"

namespace sluice::deviceplugin {

struct UnitRequest {
  std::span<const std::string> available;     // device ids; may or may not include must_include
  std::span<const std::string> must_include;  // units that the container already has (an init container's)
  int size = 0;                               // units in all, must_include counted
  int cards = 0;  // over which they are split evenly; 0: one card up to 100 units, whole cards above
};

struct UnitChoice {
  std::vector<std::string> ids;  // `size` ids if that many are available, must_include first
  bool fits = false;             // false: no card, or set of whole cards, can hold the request
};

// One card: by best fit (the least left); among equals the one whose NUMA node has fewer untouched cards. Several: the
// closest ones with as much free on each, by NVLink and NUMA node (scheduler/placement/choices.h). A request that fits
// nowhere still gets ids: kubelet would turn an error here into a refusal without our message, so Allocate refuses it
// with the reason. Ignores ids of other resources.
UnitChoice ChooseUnits(const UnitRequest& request, const scheduler::CardPlaces& places);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_UNIT_CHOICE_H_
