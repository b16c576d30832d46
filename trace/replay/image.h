// The modules that stand in for a trace's kernels: one kernel a function, with that function's parameter layout.
#ifndef SLUICE_TRACE_REPLAY_IMAGE_H_
#define SLUICE_TRACE_REPLAY_IMAGE_H_

#include <string>
#include <vector>

#include "trace/reader.h"

namespace sluice::replay {

// PTX with entry "k<i>" for function i, its parameters those of Pieces(). Its body reads, at index `launch` (a 4-byte
// parameter after them), what to touch and how long to run from the table whose address lies in the global
// "sluice_table".
std::string Image(const std::vector<trace::Function>& functions);

// The recorded parameters, in such pieces that they land at the recorded offsets where each is aligned by its size.
std::vector<trace::Parameter> Pieces(const trace::Function& function);

// The same for the simulated card (simgpu/README.md), which is told by side channel what a launch touches. There
// kernels bear the names of SimulatedNames(): the recorded ones, since the engine knows some kernels' parameters by
// them. Not so on a real card, where the grid is the replayer's own.
std::string SimulatedImage(const std::vector<trace::Function>& functions);
std::vector<std::string> SimulatedNames(const std::vector<trace::Function>& functions);

// Bytes of the parameters of `function`, without the added one.
uint32_t ParameterBytes(const trace::Function& function);

// An entry of the table, and a run of memory; the PTX knows these layouts.
struct TableEntry {
  uint64_t runs;   // address of the first run
  uint64_t count;  // how many
  uint64_t nanoseconds;
};
struct TableRun {
  uint64_t address, bytes;
};

}  // namespace sluice::replay

#endif  // SLUICE_TRACE_REPLAY_IMAGE_H_
