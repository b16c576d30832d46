// Makes traces without a GPU: a transformer's training steps or an LLM's decoding. Sizes, launches, allocator reports
// and durations are computed from the model, through a caching allocator like PyTorch's. The traces carry
// kFlagSynthetic, so that results from them can be labelled. Their truth column is exact by construction.
#ifndef SLUICE_TRACE_TOOLS_SYNTHETIC_H_
#define SLUICE_TRACE_TOOLS_SYNTHETIC_H_

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace sluice::trace {

struct ModelShape {
  int layers = 12;
  uint64_t width = 2048;
  uint64_t tokens = 4096;  // of a batch; for decode: of the cache at the start
  uint64_t vocabulary = 32000;
  int steps = 6;
  double flops = 6.0e14;        // of a matrix product, operations a second
  double bytes_per_s = 3.5e12;  // of a memory-bound kernel
};

// Training with bf16 weights, gradients and AdamW moments: 8 bytes a parameter are live at all times, activations on
// top.
absl::Status WriteTransformer(const std::string& path, const ModelShape& shape);
// Decoding, one token a step: every weight is read once, the cache grows.
absl::Status WriteDecode(const std::string& path, const ModelShape& shape);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_SYNTHETIC_H_
