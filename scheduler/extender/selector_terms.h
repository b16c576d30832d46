// The CEL selectors of a claim's request, as far as placement reads them: comparisons of a device's attributes.
#ifndef SLUICE_SCHEDULER_EXTENDER_SELECTOR_TERMS_H_
#define SLUICE_SCHEDULER_EXTENDER_SELECTOR_TERMS_H_

#include <string_view>
#include <vector>

#include "scheduler/placement/claim_packing.h"

namespace sluice::scheduler {

// The terms that a selector's expression joins by &&, which must all hold. Read are device.attributes['DOMAIN'].NAME
// with ==, != or `in` and a list, 'NAME' in device.attributes['DOMAIN'], and negations of these. A term of another form
// is left out: the scheduler evaluates it itself, and here a score may be wrong. Pure.
std::vector<CardTerm> ReadSelector(std::string_view expression);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_SELECTOR_TERMS_H_
