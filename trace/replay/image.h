// The modules that stand in for a trace's kernels: one kernel a function, with that function's parameter layout.
#ifndef SLUICE_TRACE_REPLAY_IMAGE_H_
#define SLUICE_TRACE_REPLAY_IMAGE_H_

#include <string>
#include <vector>

#include "trace/reader.h"

namespace sluice::replay {

// PTX with entry "k<i>" for function i, whose parameters are those of Pieces() and a 4-byte `launch`. The body reads
// the ranges to touch and the time to run from entry `launch` of the table at the address in the global "sluice_table".
std::string Image(const std::vector<trace::Function>& functions);

// The recorded parameters, cut into pieces that land at the recorded offsets when each is aligned by its size.
std::vector<trace::Parameter> Pieces(const trace::Function& function);

// The same for the simulated GPU (simgpu/README.md), which gets the touched ranges through its side channel. There,
// kernels have the names of SimulatedNames(): the recorded ones, since the engine knows some kernels' parameters by
// name. On a real GPU they do not, since the grid is the replayer's own.
std::string SimulatedImage(const std::vector<trace::Function>& functions);
std::vector<std::string> SimulatedNames(const std::vector<trace::Function>& functions);

// Bytes of the parameters of `function`, without the added `launch`.
uint32_t ParameterBytes(const trace::Function& function);

// An entry of the table, and a run of memory. The PTX depends on these layouts.
struct TableEntry {
  uint64_t runs;   // address of the first run
  uint64_t count;  // number of runs
  uint64_t nanoseconds;
};
struct TableRun {
  uint64_t address, bytes;
};

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_IMAGE_H_
