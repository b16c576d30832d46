// What a replay is reported as.
#ifndef SLUICE_TRACE_REPLAY_FIGURES_H_
#define SLUICE_TRACE_REPLAY_FIGURES_H_

#include <nlohmann/json.hpp>
#include <string>

#include "player.h"

namespace sluice::replay {

// One object; per-step means leave the first `warm_up` steps out.
nlohmann::json Figures(const std::string& file, const trace::Trace& trace, const Outcome& outcome, int warm_up);

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_FIGURES_H_
