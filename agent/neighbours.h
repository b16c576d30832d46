// Chooses GPUs for a program that requests equal shares of several. Pure.
#ifndef SLUICE_AGENT_NEIGHBOURS_H_
#define SLUICE_AGENT_NEIGHBOURS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "agent/status.h"

namespace sluice::agent {

// `count` GPUs with `units` free on each: of the smallest NUMA node that has enough of them, else of as few NUMA nodes
// as possible; the freest first. Empty: fewer have the units.
std::vector<std::string> ChooseNeighbours(const std::vector<CardStatus>& cards, std::size_t count, uint32_t units);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_NEIGHBOURS_H_
