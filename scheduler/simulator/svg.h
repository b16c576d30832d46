// The simulation's curves as one self-contained SVG.
#ifndef SCHEDULER_SVG_H_
#define SCHEDULER_SVG_H_

#include <string>
#include <utility>
#include <vector>

#include "scheduler/simulation.h"

namespace sluice::scheduler {

struct NamedCurve {
  std::string name;
  std::vector<Point> points;
};

// Two panels over arrivals: GPUs allocated (the part above 80 %, where policies differ) and expected unusable GPUs.
std::string Svg(const std::string& title, const std::vector<NamedCurve>& curves);

}  // namespace sluice::scheduler

#endif  // SCHEDULER_SVG_H_
