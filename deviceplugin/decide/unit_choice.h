// Which units of which card a container gets, within one node. Pure. (Which node: scheduler/.)
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_UNIT_CHOICE_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_UNIT_CHOICE_H_

#include <map>
#include <span>
#include <string>
#include <vector>

namespace sluice::deviceplugin {

struct PackRequest {
  std::span<const std::string> available;     // device ids; must_include may be among them or not
  std::span<const std::string> must_include;  // units the container has already (an init container's)
  int size = 0;                               // units in all, must_include counted
};

struct Pack {
  std::vector<std::string> ids;  // `size` of them where that many are available, must_include first
  bool fits = false;             // false: no card (or no set of whole cards) can hold the request
};

// One card for up to 100 units: the one that is left with the least (best fit), among equals the one whose NUMA node
// has fewer untouched cards. Whole, untouched cards for a multiple of 100, of as few NUMA nodes as possible. What fits
// nowhere still gets an answer (kubelet turns an error here into a refusal without our words): Allocate refuses it and
// says why. Ids that are not ours are ignored. `numa` maps a card's uuid to its NUMA node.
Pack ChooseUnits(const PackRequest& request, const std::map<std::string, int>& numa);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_UNIT_CHOICE_H_
