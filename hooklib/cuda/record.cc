#include "hooklib/cuda/record.h"

namespace sluice {

trace::Recorder* g_recorder = nullptr;

void RecordLaunch(const Stream& stream, CUfunction function, const FunctionInfo& info, const unsigned* grid, const unsigned* block,
                  unsigned shared, uint32_t flags, std::span<const uint64_t> all, std::span<const uint64_t> words) {
  const uint64_t handle = reinterpret_cast<uintptr_t>(function);
  std::vector<trace::Parameter> parameters;
  if (!g_recorder->HasFunction(handle)) {
    for (const auto& parameter : info.parameters) parameters.push_back({parameter.offset, parameter.bytes});
  }
  trace::LaunchRecord launch;
  launch.function = g_recorder->Function(handle, info.name.c_str(), parameters);
  launch.stream = TraceStream(stream);
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = grid[i];
    launch.block[i] = block[i];
  }
  launch.shared_bytes = shared;
  launch.flags = flags;
  launch.words = all;
  std::vector<trace::AccessRange> accesses;
  {
    std::lock_guard lock(stream.device->mutex);
    for (const uint64_t word : words) {
      if (const auto extent = stream.device->live.Resolve(word)) {
        accesses.push_back({extent->base, extent->bytes, trace::Access::kUnknown, trace::AccessSource::kParameters});
      }
    }
  }
  launch.accesses = accesses;
  g_recorder->Launch(launch);
}

}  // namespace sluice
