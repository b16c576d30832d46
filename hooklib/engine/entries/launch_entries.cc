// Kernel launches of every kind.
#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "hooklib/compute/launch_token.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/dispatch/uncancelled.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/execute/thread_scratch.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/captured_calls.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/params.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

namespace {

struct Shape {
  unsigned grid[3], block[3], shared;
};

libraries::LaunchShape LaunchShapeOf(const Shape& s) {
  return {{s.grid[0], s.grid[1], s.grid[2]}, {s.block[0], s.block[1], s.block[2]}};
}

uint64_t ExecutionId(CUfunction function, const Shape& shape) {
  uint64_t hash = reinterpret_cast<uintptr_t>(function);
  const auto two = [](unsigned a, unsigned b) { return uint64_t{a} << 32 | b; };
  for (const uint64_t value :
       {two(shape.grid[1], shape.grid[0]), two(shape.block[0], shape.grid[2]), two(shape.block[2], shape.block[1])}) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash | 1;
}

// On a stream that the engine does not know (captured before it was first used here): only the graph's node is noted.
template <typename Issue>
CUresult LaunchOnUnknownStream(CUstream handle, Issue issue) {
  const CUresult result = issue();
  if (result == CUDA_SUCCESS && handle && g_captures.load(std::memory_order_relaxed) > 0) NoteCapturedLaunch(handle);
  return result;
}

// The key of a launch outside library calls for the fast path; 0: its words do not suffice for one.
uint64_t FastPathKey(const Stream& stream, const FunctionInfo& info, uint64_t id, void* const* parameters) {
  return info.is_simple && parameters ? KeyOfWords(info, parameters, id ^ uint64_t{stream.id} << 32) : 0;
}

// One struct, because each access to a thread-local costs.
struct LaunchScratch {
  NamedMemory named;
  std::vector<uint64_t> all;
  std::vector<memory::Extent> exact;
};

// Out of line, so that the path without planning stays short.
template <typename Issue>
__attribute__((noinline)) CUresult LaunchPlanned(Stream* stream, CUfunction function, const Shape& shape,
                                                 void** parameters, void** extra, uint32_t flags, Issue issue) {
  const UncancelledScope uncancelled;
  std::optional<LaunchScratch> own;
  LaunchScratch* scratch = ThreadScratch<LaunchScratch>();
  if (!scratch) scratch = &own.emplace();
  auto& [named, all, exact] = *scratch;
  named.clear();
  all.clear();
  exact.clear();
  if (IsCapturing(*stream)) {
    // Not run now. Memory that it names belongs to the graph; the rest of its access set is found when the graph is
    // instantiated.
    if (const FunctionInfo* known = KnownInfoOf(function)) CollectWords(*known, parameters, extra, &named.words);
    for (const uint64_t word : named.words) stream->device->MarkCaptured(word);
    LibraryCall* const captured = CurrentLibraryCall();
    if (captured) MarkCapturedCall(*stream, *captured);
    const CUresult result = issue();
    if (result == CUDA_SUCCESS && Recording()) {
      const FunctionInfo* const info = InfoOf(function, stream->owner);
      named.clear();
      const libraries::LaunchShape dims = LaunchShapeOf(shape);
      Work work;
      work.stream = stream;
      CollectNames(*info, dims, parameters, extra, &named, &all);
      if (captured) DropOperands(*captured, &named);
      work.library = captured;
      work.words = named.words;
      work.reaches = named.reaches;
      RecordLaunch(work, function, *info, dims, shape.shared, flags | trace::kLaunchCaptured, all);
    }
    if (result == CUDA_SUCCESS) {
      NoteCapturedLaunch(stream->handle);
    } else {
      SLUICE_LOG(kDebug, "a captured launch failed with %d", result);
    }
    return result;
  }
  const FunctionInfo* info = InfoOf(function, stream->owner);
  Work work;
  work.stream = stream;
  const libraries::LaunchShape dims = LaunchShapeOf(shape);
  work.known = CollectNames(*info, dims, parameters, extra, &named, Recording() ? &all : nullptr);
  LibraryCall* const library = CurrentLibraryCall();
  if (library && AttachLibraryCall(stream, library, &named, &exact, &work.read_only, &work.overwritten))
    work.known = true;
  // Launches of CUDA 3, parameters of unknown layout, pointers that a library call reads on the GPU.
  work.may_write_anywhere = !work.known || (library && library->has_unseen_pointers);
  work.library = library;
  work.exact = exact;
  work.words = named.words;
  work.reaches = named.reaches;
  work.id = ExecutionId(function, shape);
  if (!library) work.key = FastPathKey(*stream, *info, work.id, parameters);
  work.function = info;
  const bool recording = Recording();
  uint64_t ordinal = 0;
  if (recording) ordinal = RecordLaunch(work, function, *info, dims, shape.shared, flags, all);
  const LaunchTimer timer(*stream, ordinal, recording);
  if (NeedsRunWork(stream)) return RunWork(work, issue);
  if (stream->device->watches_use.load(std::memory_order_relaxed)) stream->device->NoteUse(work);
  NoteQueued();
  return RunCounted(stream, issue);
}

template <typename Issue>
__attribute__((noinline)) CUresult LaunchFast(Stream* stream, CUfunction function, const Shape& shape,
                                              void** parameters, void** extra, uint32_t flags, Issue issue) {
  const uint64_t id = ExecutionId(function, shape);
  const uint64_t key =
      CurrentLibraryCall() ? 0 : FastPathKey(*stream, *InfoOf(function, stream->owner), id, parameters);
  if (!key || !WorkScope::TryFastPath(stream, id, key))
    return LaunchPlanned(stream, function, shape, parameters, extra, flags, issue);
  const CUresult result = [&] {
    const CallUnderway underway;
    return issue();
  }();
  WorkScope::EndFastPath(stream);
  return result;
}

template <typename Issue>
__attribute__((always_inline)) inline CUresult Launch(CUstream handle, bool ptsz, CUfunction function,
                                                      const Shape& shape, void** parameters, void** extra,
                                                      uint32_t flags, Issue issue) {
  Stream* stream = FindStream(handle, ptsz);
  if (!stream) return LaunchOnUnknownStream(handle, issue);
  LaunchToken token(stream, [&] { return ExecutionId(function, shape); });
  const auto run = [&] { return token.Run(issue); };
  if (NeedsRunWork(stream) || stream->device->watches_use.load(std::memory_order_relaxed) || Recording()) {
    const bool may_be_fast =
        stream->device->MayUseFastPath() && g_captures.load(std::memory_order_relaxed) == 0 && !Recording();
    return may_be_fast ? LaunchFast(stream, function, shape, parameters, extra, flags, run)
                       : LaunchPlanned(stream, function, shape, parameters, extra, flags, run);
  }
  NoteQueued();
  return RunCounted(stream, run);
}

}  // namespace

namespace entry {

#define SLUICE_LAUNCH_KERNEL(name, ptsz)                                                                      \
  CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,   \
                unsigned shared, CUstream stream, void** parameters, void** extra) {                          \
    return Launch(stream, ptsz, f, {{gx, gy, gz}, {bx, by, bz}, shared}, parameters, extra, 0,                \
                  [&] { return g_real.name(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra); }); \
  }
SLUICE_LAUNCH_KERNEL(cuLaunchKernel, false)
SLUICE_LAUNCH_KERNEL(cuLaunchKernel_ptsz, true)
#undef SLUICE_LAUNCH_KERNEL

#define SLUICE_LAUNCH_KERNEL_EX(name, ptsz)                                                                       \
  CUresult name(const CUlaunchConfig* c, CUfunction f, void** parameters, void** extra) {                         \
    if (!c) return g_real.name(c, f, parameters, extra);                                                          \
    return Launch(                                                                                                \
        c->hStream, ptsz, f,                                                                                      \
        {{c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes}, \
        parameters, extra, 0, [&] { return g_real.name(c, f, parameters, extra); });                              \
  }
SLUICE_LAUNCH_KERNEL_EX(cuLaunchKernelEx, false)
SLUICE_LAUNCH_KERNEL_EX(cuLaunchKernelEx_ptsz, true)
#undef SLUICE_LAUNCH_KERNEL_EX

#define SLUICE_LAUNCH_COOPERATIVE(name, ptsz)                                                               \
  CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                unsigned shared, CUstream stream, void** parameters) {                                      \
    return Launch(stream, ptsz, f, {{gx, gy, gz}, {bx, by, bz}, shared}, parameters, nullptr, 1,            \
                  [&] { return g_real.name(f, gx, gy, gz, bx, by, bz, shared, stream, parameters); });      \
  }
SLUICE_LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
SLUICE_LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)
#undef SLUICE_LAUNCH_COOPERATIVE

// The driver starts all parts together. Each waits for its GPU's time slice before, in the order of the GPUs' UUIDs:
// the parts of two processes do not wait for each other crosswise. Then each device's memory is fetched, in the order
// of the streams' addresses, so that two threads cannot deadlock on the streams' orders.
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned flags) {
  struct DevicePart {
    Stream* stream;
    CUcontext context;
    const CUDA_LAUNCH_PARAMS* launch;
    Shape shape;
    NamedMemory named;
    std::optional<LaunchToken> token;
    std::optional<WorkScope> scope;
  };
  const UncancelledScope uncancelled;
  NoteQueued();
  std::deque<DevicePart> parts;  // tokens and scopes must not move
  std::vector<DevicePart*> order;
  for (unsigned i = 0; list && i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& p = list[i];
    Stream* const stream = FindStream(p.hStream, false);
    if (!stream) continue;
    DevicePart& part = parts.emplace_back();
    part.stream = stream;
    part.context = stream->owner;
    part.launch = &p;
    part.shape = {{p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}, p.sharedMemBytes};
    order.push_back(&part);
  }
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->stream < b->stream; });
  // The driver refuses two parts on one stream.
  if (std::adjacent_find(order.begin(), order.end(), [](auto* a, auto* b) { return a->stream == b->stream; }) !=
      order.end()) {
    order.clear();
  }
  std::vector<DevicePart*> by_gpu = order;
  std::sort(by_gpu.begin(), by_gpu.end(),
            [](auto* a, auto* b) { return a->stream->device->uuid < b->stream->device->uuid; });
  for (DevicePart* const part : by_gpu)
    part->token.emplace(part->stream, [&] { return ExecutionId(part->launch->function, part->shape); });
  for (DevicePart* const part : order) {
    const bool is_planned = NeedsRunWork(part->stream);
    if (!is_planned && !part->stream->device->watches_use.load(std::memory_order_relaxed)) continue;
    const ContextScope scope(part->context);
    const CUDA_LAUNCH_PARAMS& p = *part->launch;
    Work work;
    work.stream = part->stream;
    work.known = CollectNames(*InfoOf(p.function, part->context), LaunchShapeOf(part->shape), p.kernelParams, nullptr,
                              &part->named);
    work.may_write_anywhere = !work.known;
    work.words = part->named.words;
    work.reaches = part->named.reaches;
    work.id = ExecutionId(p.function, part->shape);
    is_planned ? void(part->scope.emplace(work)) : part->stream->device->NoteUse(work);
  }
  for (DevicePart* const part : order) {
    if (part->token) part->token->Begin();
  }
  const CUresult result = [&] {
    const CallUnderway underway;
    return g_real.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
  }();
  for (DevicePart* const part : order) {
    if (part->token) part->token->End();
    if (part->scope) {
      const ContextScope scope(part->context);
      part->scope->End(result);
    } else {
      part->stream->seq.fetch_add(1, std::memory_order_release);
    }
  }
  return result;
}

// The launch calls of CUDA 3: parameters were set one by one before, so their access set stays unknown and is faulted
// in.
CUresult cuLaunchGrid(CUfunction f, int width, int height) {
  return Launch(nullptr, false, f, {{static_cast<unsigned>(width), static_cast<unsigned>(height), 1}, {1, 1, 1}, 0},
                nullptr, nullptr, 0, [&] { return g_real.cuLaunchGrid(f, width, height); });
}
CUresult cuLaunch(CUfunction f) {
  return Launch(nullptr, false, f, {{1, 1, 1}, {1, 1, 1}, 0}, nullptr, nullptr, 0, [&] { return g_real.cuLaunch(f); });
}
CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
  return Launch(stream, false, f, {{static_cast<unsigned>(width), static_cast<unsigned>(height), 1}, {1, 1, 1}, 0},
                nullptr, nullptr, 0, [&] { return g_real.cuLaunchGridAsync(f, width, height, stream); });
}

CUresult cuModuleUnload(CUmodule module) {
  ForgetFunctions(module);
  return g_real.cuModuleUnload(module);
}
CUresult cuLibraryUnload(CUlibrary library) {
  ForgetFunctions(library);
  return g_real.cuLibraryUnload(library);
}
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  const CUresult result = g_real.cuLibraryGetModule(module, library);
  if (result == CUDA_SUCCESS) NoteModuleOf(library, *module);
  return result;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  const CUresult result = g_real.cuKernelGetFunction(function, kernel);
  if (result == CUDA_SUCCESS) NoteFunctionOf(kernel, *function);
  return result;
}

}  // namespace entry
}  // namespace sluice
