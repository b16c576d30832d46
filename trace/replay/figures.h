// The report of a replay.
#ifndef SLUICE_TRACE_REPLAY_FIGURES_H_
#define SLUICE_TRACE_REPLAY_FIGURES_H_

#include <nlohmann/json.hpp>
#include <string>

#include "player.h"

namespace sluice::replay {

// One JSON object. Means and the median leave out the first `warm_up` steps.
nlohmann::json Figures(const std::string& file, const trace::Trace& trace, const Outcome& outcome, int warm_up);

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_FIGURES_H_
