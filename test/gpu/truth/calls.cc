#include "calls.h"

#include <cupti.h>
#include <time.h>

#include <atomic>
#include <cstdio>

namespace sluice::truth {
namespace {

thread_local bool t_inside = false;   // the recorder's own CUDA calls make callbacks too
thread_local bool t_runtime = false;  // inside a runtime call that is recorded: its driver calls are not
std::atomic<uint64_t> g_own_ns = 0;
thread_local uint64_t t_entered_ns = 0;

uint64_t Monotonic() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

template <typename T>
const T& As(const CUpti_CallbackData* info) {
  return *static_cast<const T*>(info->functionParams);
}

const void* Pointer(CUdeviceptr p) { return reinterpret_cast<const void*>(p); }

void CopyOrWait(CUpti_CallbackId id, const CUpti_CallbackData* info) {
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2: {
      const auto& p = As<cuMemcpyHtoDAsync_v2_params>(info);
      Copied(p.hStream, Pointer(p.dstDevice), p.srcHost, p.ByteCount, false);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2: {
      const auto& p = As<cuMemcpyDtoHAsync_v2_params>(info);
      Copied(p.hStream, p.dstHost, Pointer(p.srcDevice), p.ByteCount, false);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2: {
      const auto& p = As<cuMemcpyDtoDAsync_v2_params>(info);
      Copied(p.hStream, Pointer(p.dstDevice), Pointer(p.srcDevice), p.ByteCount, false);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async: {
      const auto& p = As<cuMemsetD8Async_params>(info);
      Filled(p.hStream, p.dstDevice, p.N, p.uc);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async: {
      const auto& p = As<cuMemsetD32Async_params>(info);
      Filled(p.hStream, p.dstDevice, p.N * 4, p.ui);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize:
      TheRecorder().StreamSync(Handle(As<cuStreamSynchronize_params>(info).hStream));
      break;
    case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize:
      TheRecorder().DeviceSync();
      break;
    case CUPTI_DRIVER_TRACE_CBID_cuEventRecord: {
      const auto& p = As<cuEventRecord_params>(info);
      TheRecorder().EventRecord(Handle(p.hEvent), Handle(p.hStream));
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent: {
      const auto& p = As<cuStreamWaitEvent_params>(info);
      TheRecorder().StreamWaitEvent(Handle(p.hStream), Handle(p.hEvent));
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize:
      TheRecorder().EventSync(Handle(As<cuEventSynchronize_params>(info).hEvent));
      break;
    default:
      break;
  }
}

void Entered(CUpti_CallbackId id, const CUpti_CallbackData* info) {
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
                   info->symbolName, info->correlationId);
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
                   info->symbolName, info->correlationId);
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
                   info->symbolName, info->correlationId);
      break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2:
      Freed(As<cuMemFree_v2_params>(info).dptr);
      break;
    default:
      if (!t_runtime) CopyOrWait(id, info);
      break;
  }
}

// Calls of the runtime are recorded as such, and the driver calls that they make are not.
void EnteredRuntime(CUpti_CallbackId id, const CUpti_CallbackData* info) {
  switch (id) {
    case CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020: {
      const auto& p = As<cudaMemcpy_v3020_params>(info);
      Copied(nullptr, p.dst, p.src, p.count, true);
      break;
    }
    case CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020: {
      const auto& p = As<cudaMemcpyAsync_v3020_params>(info);
      Copied(p.stream, p.dst, p.src, p.count, false);
      break;
    }
    case CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020: {
      const auto& p = As<cudaMemsetAsync_v3020_params>(info);
      Filled(p.stream, Handle(p.devPtr), p.count, static_cast<uint64_t>(p.value));
      break;
    }
    case CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020:
      TheRecorder().StreamSync(Handle(As<cudaStreamSynchronize_v3020_params>(info).stream));
      break;
    case CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020:
      TheRecorder().DeviceSync();
      break;
    case CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020: {
      const auto& p = As<cudaEventRecord_v3020_params>(info);
      TheRecorder().EventRecord(Handle(p.event), Handle(p.stream));
      break;
    }
    case CUPTI_RUNTIME_TRACE_CBID_cudaEventRecordWithFlags_v11010: {
      const auto& p = As<cudaEventRecordWithFlags_v11010_params>(info);
      TheRecorder().EventRecord(Handle(p.event), Handle(p.stream));
      break;
    }
    case CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020: {
      const auto& p = As<cudaStreamWaitEvent_v3020_params>(info);
      TheRecorder().StreamWaitEvent(Handle(p.stream), Handle(p.event));
      break;
    }
    case CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020:
      TheRecorder().EventSync(Handle(As<cudaEventSynchronize_v3020_params>(info).event));
      break;
    default:
      break;
  }
}

void Exited(CUpti_CallbackId id, const CUpti_CallbackData* info) {
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
      if (*static_cast<CUresult*>(info->functionReturnValue) == CUDA_SUCCESS) LibraryAllocated(*p.dptr, p.bytesize);
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI Callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const CUpti_CallbackData* info) {
  if (t_inside) return;
  const Guard guard;
  const bool enters = info->callbackSite == CUPTI_API_ENTER;
  if (domain == CUPTI_CB_DOMAIN_RUNTIME_API) {
    if (enters) EnteredRuntime(id, info);
    t_runtime = enters;
  } else if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
    enters ? Entered(id, info) : Exited(id, info);
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

constexpr CUpti_CallbackId kRuntimeCalls[] = {
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaEventRecordWithFlags_v11010,
    CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020,
    CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020,
};

}  // namespace

uint64_t ProgramTime(void*) { return (t_entered_ns != 0 ? t_entered_ns : Monotonic()) - g_own_ns; }

Guard::Guard() {
  t_inside = true;
  t_entered_ns = Monotonic();
}
Guard::~Guard() {
  g_own_ns += Monotonic() - t_entered_ns;
  t_entered_ns = 0;
  t_inside = false;
}

void LogError(const char* call, int code) {
  static std::atomic<int> logged = 0;
  if (logged.fetch_add(1) < 20) std::fprintf(stderr, "sluice-truth: %s: %d\n", call, code);
}

void Subscribe() {
  CUpti_SubscriberHandle subscriber = nullptr;
  TRY(cuptiSubscribe(&subscriber, reinterpret_cast<CUpti_CallbackFunc>(Callback), nullptr));
  for (const CUpti_CallbackId id : kCalls) TRY(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id));
  for (const CUpti_CallbackId id : kRuntimeCalls)
    TRY(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, id));
}

}  // namespace sluice::truth
