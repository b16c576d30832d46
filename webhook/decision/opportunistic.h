// Containers with priority "opportunistic". Pure functions.
#ifndef SLUICE_WEBHOOK_DECISION_OPPORTUNISTIC_H_
#define SLUICE_WEBHOOK_DECISION_OPPORTUNISTIC_H_

#include <cstdint>
#include <optional>
#include <string>

#include "webhook/decision/requested_shares.h"

namespace sluice::webhook {

// Why such a container is denied; empty: it is not. `units`: of sluice.dev/gpu-percent, as its resources request them.
// It gets one unit whatever its size: its way to the GPU's devices, library and socket. Nothing is guaranteed for it,
// so guarantees may fill the rest of the GPU.
std::string OpportunisticProblem(const RequestedShare& r, std::optional<int64_t> units);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_OPPORTUNISTIC_H_
