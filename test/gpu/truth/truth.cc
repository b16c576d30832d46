// Records a PyTorch program as a trace on a real card, without sluice: preloaded, and loaded by the driver through
// CUDA_INJECTION64_PATH. Made on the machine that has CUPTI (see record_traces).
//
//   SLUICE_TRUTH_OUT=FILE    the trace
//   SLUICE_TRUTH_MODE=fast   host times and kernel durations, by CUPTI's activity records; nothing else is changed
//   SLUICE_TRUTH_MODE=slow   the truth column: cudaMalloc gives managed memory; before each launch everything is on the
//   host, so that
//                            the driver's transfer records of that launch are the pages that it touched
//
// `sluice-trace merge SLOW FAST TO` joins the two.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace/recorder.h"

namespace {

using sluice::trace::Access;
using sluice::trace::AccessRange;
using sluice::trace::AccessSource;
using sluice::trace::AllocKind;
using sluice::trace::LaunchRecord;
using sluice::trace::Parameter;
using sluice::trace::Recorder;

constexpr size_t kBufferBytes = size_t{4} << 20;

Recorder* g_recorder = nullptr;
bool g_slow = false;
bool g_configured = false;
uint64_t g_managed_limit = 0, g_managed = 0;

// Lock order: g_launch (one launch at a time in slow mode), then g_data.
std::mutex g_launch, g_data;
std::vector<AccessRange> g_moved_in;                 // transfer records since they were last taken
std::unordered_map<uint32_t, uint64_t> g_launch_of;  // CUPTI's correlation id -> ordinal
std::map<uint64_t, uint64_t> g_blocks;               // managed allocations
std::vector<AccessRange> g_on_card;                  // what must leave before the next launch
uint64_t g_transfers = 0, g_lost = 0, g_launches = 0, g_without_layout = 0;

thread_local bool t_inside = false;  // our own CUDA calls make callbacks too

struct Guard {
  Guard() { t_inside = true; }
  ~Guard() { t_inside = false; }
};

void Complain(const char* what, int code) { std::fprintf(stderr, "sluice-truth: %s: %d\n", what, code); }

#define TRY(call)                                                  \
  do {                                                             \
    if (const int code = (call); code != 0) Complain(#call, code); \
  } while (0)

void CUPTIAPI BufferWanted(uint8_t** buffer, size_t* size, size_t* records) {
  *buffer = static_cast<uint8_t*>(aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *records = 0;
}

void CUPTIAPI BufferDone(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  std::lock_guard lock(g_data);
  while (valid > 0 && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) {
      const auto* r = reinterpret_cast<CUpti_ActivityUnifiedMemoryCounter3*>(record);
      if (r->counterKind == CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD) {
        g_moved_in.push_back({r->address, r->value, Access::kUnknown, AccessSource::kParameters});
        ++g_transfers;
      }
    } else if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* r = reinterpret_cast<CUpti_ActivityKernel10*>(record);
      const auto it = g_launch_of.find(r->correlationId);
      if (it == g_launch_of.end()) {
        ++g_lost;
        continue;
      }
      g_recorder->Duration(it->second, std::max<uint64_t>(1, r->end - r->start));
      g_launch_of.erase(it);
    }
  }
  size_t dropped = 0;
  cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  if (dropped != 0) std::fprintf(stderr, "sluice-truth: CUPTI dropped %zu records\n", dropped);
  free(buffer);
}

// Sorted and merged transfer records since the last call, the device idle.
std::vector<AccessRange> TakeTransfers() {
  TRY(cuCtxSynchronize());
  TRY(cuptiActivityFlushAll(1));
  std::vector<AccessRange> taken;
  {
    std::lock_guard lock(g_data);
    taken.swap(g_moved_in);
  }
  std::sort(taken.begin(), taken.end(),
            [](const AccessRange& a, const AccessRange& b) { return a.address < b.address; });
  std::vector<AccessRange> merged;
  for (const AccessRange& range : taken) {
    if (!merged.empty() && range.address <= merged.back().address + merged.back().bytes) {
      merged.back().bytes =
          std::max(merged.back().address + merged.back().bytes, range.address + range.bytes) - merged.back().address;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

void ToHost(uint64_t address, uint64_t bytes) {
  const CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  const auto block = g_blocks.upper_bound(address);
  if (block == g_blocks.begin()) return;
  const auto at = std::prev(block);
  const uint64_t end = std::min(address + bytes, at->first + at->second);
  if (address < end) TRY(cuMemPrefetchAsync(address, end - address, host, 0, nullptr));
}

// Everything that copies, memsets and the launch before brought to the card leaves it.
void EmptyCard() {
  for (const AccessRange& range : TakeTransfers()) g_on_card.push_back(range);
  for (const AccessRange& range : g_on_card) ToHost(range.address, range.bytes);
  g_on_card.clear();
  TakeTransfers();
}

void ConfigureOnce() {
  if (g_configured) return;
  g_configured = true;
  if (g_slow) {
    CUpti_ActivityUnifiedMemoryCounterConfig config{};
    config.scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
    config.kind = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD;
    config.deviceId = 0;
    config.enable = 1;
    TRY(cuptiActivityConfigureUnifiedMemoryCounter(&config, 1));
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER));
  } else {
    TRY(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  }
}

// The parameters as one packed image of 8-byte words, by the driver's own layout.
struct Arguments {
  std::vector<Parameter> layout;
  std::vector<uint64_t> words;
};
std::unordered_map<uint64_t, std::vector<Parameter>> g_layouts;

Arguments ReadArguments(CUfunction function, void** parameters, void** extra) {
  Arguments out;
  {
    std::lock_guard lock(g_data);
    const auto it = g_layouts.find(reinterpret_cast<uint64_t>(function));
    if (it != g_layouts.end()) out.layout = it->second;
  }
  if (out.layout.empty()) {
    size_t offset = 0, bytes = 0;
    for (size_t i = 0; cuFuncGetParamInfo(function, i, &offset, &bytes) == CUDA_SUCCESS; ++i) {
      out.layout.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
    }
    if (out.layout.empty()) {
      const auto kernel = reinterpret_cast<CUkernel>(function);  // runtimes of CUDA 12 launch kernels of libraries
      for (size_t i = 0; cuKernelGetParamInfo(kernel, i, &offset, &bytes) == CUDA_SUCCESS; ++i) {
        out.layout.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
      }
    }
    if (out.layout.empty()) ++g_without_layout;
    std::lock_guard lock(g_data);
    g_layouts[reinterpret_cast<uint64_t>(function)] = out.layout;
  }
  uint32_t end = 0;
  for (const Parameter& p : out.layout) end = std::max(end, p.offset + p.bytes);
  out.words.resize((end + 7) / 8);
  char* image = reinterpret_cast<char*>(out.words.data());
  if (parameters != nullptr) {
    for (size_t i = 0; i < out.layout.size(); ++i)
      std::memcpy(image + out.layout[i].offset, parameters[i], out.layout[i].bytes);
  } else if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t size = 0;
    for (void** e = extra; *e != CU_LAUNCH_PARAM_END; e += 2) {
      if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = e[1];
      if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(e[1]);
    }
    if (buffer != nullptr) std::memcpy(image, buffer, std::min<size_t>(size, out.words.size() * 8));
  }
  return out;
}

struct Shape {
  CUfunction function;
  unsigned grid[3], block[3], shared;
  CUstream stream;
  void** parameters;
  void** extra;
};

thread_local uint64_t t_launch = 0;
thread_local bool t_locked = false;

void LaunchBegins(const Shape& shape, const CUpti_CallbackData* info) {
  ConfigureOnce();
  const Arguments arguments = ReadArguments(shape.function, shape.parameters, shape.extra);
  if (g_slow) {
    g_launch.lock();
    t_locked = true;
    EmptyCard();
  }
  LaunchRecord record;
  record.function =
      g_recorder->Function(reinterpret_cast<uint64_t>(shape.function), info->symbolName, arguments.layout);
  record.stream = reinterpret_cast<uint64_t>(shape.stream);
  std::copy(shape.grid, shape.grid + 3, record.grid);
  std::copy(shape.block, shape.block + 3, record.block);
  record.shared_bytes = shape.shared;
  record.words = arguments.words;
  if (g_slow) {
    t_launch = g_recorder->Launch(record);
  } else {
    std::lock_guard lock(g_data);  // the kernel's record cannot arrive before its ordinal is known
    t_launch = g_recorder->Launch(record);
    g_launch_of[info->correlationId] = t_launch;
  }
  ++g_launches;
}

void LaunchEnded() {
  if (!g_slow || !t_locked) return;
  std::vector<AccessRange> touched = TakeTransfers();
  g_recorder->Truth(t_launch, touched);
  g_on_card = std::move(touched);
  t_locked = false;
  g_launch.unlock();
}

// A new block's pages are put on the host at once: a first touch by the GPU would make no transfer.
void Allocated(uint64_t address, uint64_t bytes, bool managed) {
  g_recorder->Alloc(AllocKind::kDevice, address, bytes);
  if (!managed) return;
  {
    std::lock_guard lock(g_data);
    g_blocks[address] = bytes;
    g_managed += bytes;
  }
  ConfigureOnce();
  ToHost(address, bytes);
  TRY(cuCtxSynchronize());
}

void Freed(uint64_t address) {
  g_recorder->Free(address);
  std::lock_guard lock(g_data);
  const auto it = g_blocks.find(address);
  if (it == g_blocks.end()) return;
  g_managed -= it->second;
  g_blocks.erase(it);
}

template <typename T>
const T& As(const CUpti_CallbackData* info) {
  return *static_cast<const T*>(info->functionParams);
}

uint64_t Handle(const void* p) { return reinterpret_cast<uint64_t>(p); }

void Entered(CUpti_CallbackId id, const CUpti_CallbackData* info) {
  using namespace sluice::trace;
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz: {
      const auto& p = As<cuLaunchKernel_params>(info);
      LaunchBegins({p.f,
                    {p.gridDimX, p.gridDimY, p.gridDimZ},
                    {p.blockDimX, p.blockDimY, p.blockDimZ},
                    p.sharedMemBytes,
                    p.hStream,
                    p.kernelParams,
                    p.extra},
                   info);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz: {
      const auto& p = As<cuLaunchKernelEx_params>(info);
      const CUlaunchConfig& c = *p.config;
      LaunchBegins({p.f,
                    {c.gridDimX, c.gridDimY, c.gridDimZ},
                    {c.blockDimX, c.blockDimY, c.blockDimZ},
                    c.sharedMemBytes,
                    c.hStream,
                    p.kernelParams,
                    p.extra},
                   info);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz: {
      const auto& p = As<cuLaunchCooperativeKernel_params>(info);
      LaunchBegins({p.f,
                    {p.gridDimX, p.gridDimY, p.gridDimZ},
                    {p.blockDimX, p.blockDimY, p.blockDimZ},
                    p.sharedMemBytes,
                    p.hStream,
                    p.kernelParams,
                    nullptr},
                   info);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2:
      Freed(As<cuMemFree_v2_params>(info).dptr);
      break;
    case CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2: {
      const auto& p = As<cuMemcpyHtoDAsync_v2_params>(info);
      g_recorder->Copy(Handle(p.hStream), p.dstDevice, Handle(p.srcHost), p.ByteCount, kCopyToDevice);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2: {
      const auto& p = As<cuMemcpyDtoHAsync_v2_params>(info);
      g_recorder->Copy(Handle(p.hStream), Handle(p.dstHost), p.srcDevice, p.ByteCount, kCopyFromDevice);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2: {
      const auto& p = As<cuMemcpyDtoDAsync_v2_params>(info);
      g_recorder->Copy(Handle(p.hStream), p.dstDevice, p.srcDevice, p.ByteCount, kCopyFromDevice | kCopyToDevice);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async: {
      const auto& p = As<cuMemsetD8Async_params>(info);
      g_recorder->Set(Handle(p.hStream), p.dstDevice, p.N, p.uc);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async: {
      const auto& p = As<cuMemsetD32Async_params>(info);
      g_recorder->Set(Handle(p.hStream), p.dstDevice, p.N * 4, p.ui);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize:
      g_recorder->StreamSync(Handle(As<cuStreamSynchronize_params>(info).hStream));
      break;
    case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize:
      g_recorder->DeviceSync();
      break;
    case CUPTI_DRIVER_TRACE_CBID_cuEventRecord: {
      const auto& p = As<cuEventRecord_params>(info);
      g_recorder->EventRecord(Handle(p.hEvent), Handle(p.hStream));
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent: {
      const auto& p = As<cuStreamWaitEvent_params>(info);
      g_recorder->StreamWaitEvent(Handle(p.hStream), Handle(p.hEvent));
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize:
      g_recorder->EventSync(Handle(As<cuEventSynchronize_params>(info).hEvent));
      break;
    default:
      break;
  }
}

void Left(CUpti_CallbackId id, const CUpti_CallbackData* info) {
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz:
      LaunchEnded();
      break;
    case CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2: {
      const auto& p = As<cuMemAlloc_v2_params>(info);
      if (*static_cast<CUresult*>(info->functionReturnValue) == CUDA_SUCCESS) Allocated(*p.dptr, p.bytesize, false);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged: {
      const auto& p = As<cuMemAllocManaged_params>(info);
      if (*static_cast<CUresult*>(info->functionReturnValue) == CUDA_SUCCESS) Allocated(*p.dptr, p.bytesize, true);
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI Callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const CUpti_CallbackData* info) {
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || t_inside) return;
  const Guard guard;
  if (info->callbackSite == CUPTI_API_ENTER) {
    Entered(id, info);
  } else {
    Left(id, info);
  }
}

constexpr CUpti_CallbackId kCalls[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged,
    CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async,
    CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async,
    CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize,
    CUPTI_DRIVER_TRACE_CBID_cuEventRecord,
    CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent,
    CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize,
};

void AtExit() {
  const Guard guard;
  cuptiActivityFlushAll(1);
  std::fprintf(stderr,
               "sluice-truth: %llu launches, %llu transfer records, %llu kernels without a launch, %llu functions "
               "without a layout\n",
               static_cast<unsigned long long>(g_launches), static_cast<unsigned long long>(g_transfers),
               static_cast<unsigned long long>(g_lost), static_cast<unsigned long long>(g_without_layout));
  g_recorder->Finish();
}

}  // namespace

extern "C" {

// The driver calls this in cuInit when CUDA_INJECTION64_PATH names this object.
__attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("SLUICE_TRUTH_OUT");
  if (path == nullptr || g_recorder != nullptr) return 1;
  const char* mode = std::getenv("SLUICE_TRUTH_MODE");
  g_slow = mode != nullptr && std::strcmp(mode, "slow") == 0;
  const char* limit = std::getenv("SLUICE_MANAGED_LIMIT");
  g_managed_limit = limit != nullptr ? std::strtoull(limit, nullptr, 10) : uint64_t{12} << 30;
  g_recorder = new Recorder(path);
  g_recorder->Meta("source", "recorded by test/gpu/truth");
  CUpti_SubscriberHandle subscriber = nullptr;
  TRY(cuptiSubscribe(&subscriber, reinterpret_cast<CUpti_CallbackFunc>(Callback), nullptr));
  for (const CUpti_CallbackId id : kCalls) TRY(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id));
  TRY(cuptiActivityRegisterCallbacks(BufferWanted, BufferDone));
  std::atexit(AtExit);
  return 1;
}

// train.py --mark calls this.
__attribute__((visibility("default"))) void sluice_truth_step(const char* name) {
  if (g_recorder != nullptr) g_recorder->Step(name);
}

// PyTorch's segments come from the runtime's cudaMalloc; in slow mode they become managed memory.
__attribute__((visibility("default"))) cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  static void* const runtime = [] {
    for (const char* name : {"libcudart.so.13", "libcudart.so.12"}) {
      if (void* found = dlopen(name, RTLD_NOLOAD | RTLD_NOW)) return found;
    }
    return static_cast<void*>(nullptr);
  }();
  if (runtime == nullptr) return cudaErrorInitializationError;
  static const auto plain = reinterpret_cast<cudaError_t (*)(void**, size_t)>(dlsym(runtime, "cudaMalloc"));
  static const auto managed = reinterpret_cast<cudaError_t (*)(void**, size_t, unsigned)>(dlsym(runtime, "cudaMallocManaged"));
  if (!g_slow) return plain(pointer, bytes);
  // The guard: a card whose managed memory is oversubscribed can hang.
  if (g_managed + bytes > g_managed_limit) {
    std::fprintf(stderr, "sluice-truth: managed memory beyond %llu bytes refused\n",
                 static_cast<unsigned long long>(g_managed_limit));
    return cudaErrorMemoryAllocation;
  }
  return managed(pointer, bytes, cudaMemAttachGlobal);
}

// c10::reportMemoryUsageToProfiler(void*, long, unsigned long, unsigned long, c10::Device); Device is two bytes, passed
// in a register.
__attribute__((visibility("default"))) void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(
    void* pointer, long bytes, size_t allocated, size_t reserved, short device) {
  using Report = void (*)(void*, long, size_t, size_t, short);
  static const auto real = [] {
    void* library = dlopen("libc10.so", RTLD_NOLOAD | RTLD_NOW);
    return library != nullptr
               ? reinterpret_cast<Report>(dlsym(library, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"))
               : nullptr;
  }();
  if (g_recorder != nullptr && (device & 0xff) == 1) {
    g_recorder->Report(reinterpret_cast<uint64_t>(pointer), bytes, static_cast<uint32_t>((device >> 8) & 0xff));
  }
  if (real != nullptr) real(pointer, bytes, allocated, reserved, device);
}
}
