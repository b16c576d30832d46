// Draws the simulation's curves as one self-contained SVG.
#ifndef SLUICE_SCHEDULER_SIMULATOR_SVG_H_
#define SLUICE_SCHEDULER_SIMULATOR_SVG_H_

#include <string>
#include <utility>
#include <vector>

#include "scheduler/simulator/simulation.h"

namespace sluice::scheduler {

struct NamedCurve {
  std::string name;
  std::vector<Point> points;
};

// Two panels over arrivals: GPUs allocated (above 80 %, where policies differ) and expected unusable GPUs.
std::string Svg(const std::string& title, const std::vector<NamedCurve>& curves);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_SIMULATOR_SVG_H_
