// The engine's side of `sluice record`: what it sees, written as a trace (trace/recorder.h).
#ifndef SLUICE_HOOKLIB_CUDA_RECORD_H_
#define SLUICE_HOOKLIB_CUDA_RECORD_H_

#include <span>
#include <vector>

#include "hooklib/cuda/device.h"
#include "hooklib/cuda/params.h"
#include "trace/recorder.h"

namespace sluice {

extern trace::Recorder* g_recorder;
inline bool Recording() { return g_recorder != nullptr; }

void RecordLaunch(const Stream& stream, CUfunction function, const FunctionInfo& info, const unsigned* grid, const unsigned* block,
                  unsigned shared, uint32_t flags, std::span<const uint64_t> all, std::span<const uint64_t> words);

// A stream's identity in a trace: its handle.
inline uint64_t TraceStream(const Stream& stream) { return reinterpret_cast<uintptr_t>(stream.handle); }

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_CUDA_RECORD_H_
