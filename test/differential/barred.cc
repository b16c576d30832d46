// Calls beside a capture, some of which break it.
#include <thread>

#include "machine.h"
#include "try.h"

namespace differential {

namespace {

constexpr size_t kBytes = 1 << 20;

// The memory and streams of one such call, of its own.
struct Ground {
  CUstream captured = nullptr, other = nullptr;
  CUstream named = nullptr;  // of calls in another stream than the captured one
  CUdeviceptr plain = 0, managed = 0, pooled = 0, made = 0;
  CUevent event = nullptr;
  void* host = nullptr;
  int device = 0;
};

CUresult Call(Ground* g, BarredCall call) {
  size_t pitch = 0;
  unsigned char host[64] = {};
  switch (call) {
    case BarredCall::kAlloc:
      return cuMemAlloc(&g->made, kBytes);
    case BarredCall::kAllocManaged:
      return cuMemAllocManaged(&g->made, kBytes, CU_MEM_ATTACH_GLOBAL);
    case BarredCall::kAllocPitch:
      return cuMemAllocPitch(&g->made, &pitch, 1000, 64, 4);
    case BarredCall::kAllocHost:
      return cuMemHostAlloc(&g->host, kBytes, 0);
    case BarredCall::kFree:
      return cuMemFree(g->plain);
    case BarredCall::kFreeManaged:
      return cuMemFree(g->managed);
    case BarredCall::kFreePooled:
      return cuMemFree(g->pooled);
    case BarredCall::kFreeNothing:
      return cuMemFree(0x10000);
    case BarredCall::kAllocAsyncOther:
      return cuMemAllocAsync(&g->made, kBytes, g->named);
    case BarredCall::kFreeAsyncOther:
      return cuMemFreeAsync(g->pooled, g->named);
    case BarredCall::kFreeAsyncHere:
      return cuMemFreeAsync(g->pooled, g->captured);
    case BarredCall::kAdvise:
      return Advise(g->managed, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, g->device);
    case BarredCall::kPrefetchHere:
      return Prefetch(g->managed, kBytes, g->device, g->captured);
    case BarredCall::kPrefetchOther:
      return Prefetch(g->managed, kBytes, g->device, g->named);
    case BarredCall::kAttachHere:
      return cuStreamAttachMemAsync(g->captured, g->managed, 0, CU_MEM_ATTACH_GLOBAL);
    case BarredCall::kQueryOther:
      return cuStreamQuery(g->named);
    case BarredCall::kSynchronizeOther:
      return cuStreamSynchronize(g->named);
    case BarredCall::kQueryEvent:
      return cuEventQuery(g->event);
    case BarredCall::kSynchronizeContext:
      return cuCtxSynchronize();
    case BarredCall::kCopyFromHost:
      return cuMemcpyHtoD(g->plain, host, sizeof host);
    case BarredCall::kCopyToHost:
      return cuMemcpyDtoH(host, g->plain, sizeof host);
    case BarredCall::kFillNow:
      return cuMemsetD8(g->plain, 1, kBytes);
    case BarredCall::kDiscardHere:
      return Discard(g->managed, kBytes, g->captured);
    case BarredCall::kDiscardOther:
      return Discard(g->managed, kBytes, g->named);
    case BarredCall::kAttachOther:
      return cuStreamAttachMemAsync(g->named, g->managed, 0, CU_MEM_ATTACH_GLOBAL);
    case BarredCall::kFillOther:
      return cuMemsetD8Async(g->plain, 2, kBytes, g->named);
    case BarredCall::kRecordOther:
      return cuEventRecord(g->event, g->named);
    case BarredCall::kWaitOther:
      return cuStreamWaitEvent(g->named, g->event, 0);
    case BarredCall::kAllCalls:
      break;
  }
  return CUDA_ERROR_UNKNOWN;
}

CUresult CallAs(Ground* g, BarredCall call, bool relaxed) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (relaxed) TRY(cuThreadExchangeStreamCaptureMode(&mode));
  const CUresult result = Call(g, call);
  if (relaxed) TRY(cuThreadExchangeStreamCaptureMode(&mode));
  return result;
}

}  // namespace

CUresult BesideCapture(BarredCall call, CUstreamCaptureMode mode, bool elsewhere, bool relaxed, int device,
                       bool legacy) {
  Ground g;
  g.device = device;
  TRY(cuStreamCreate(&g.captured, legacy ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
  TRY(cuStreamCreate(&g.other, CU_STREAM_NON_BLOCKING));
  g.named = legacy ? CU_STREAM_LEGACY : g.other;
  TRY(cuEventCreate(&g.event, CU_EVENT_DISABLE_TIMING));
  TRY(cuMemAlloc(&g.plain, kBytes));
  TRY(cuMemAllocManaged(&g.managed, kBytes, CU_MEM_ATTACH_GLOBAL));
  TRY(cuMemAllocAsync(&g.pooled, kBytes, g.other));
  TRY(cuMemsetD8Async(g.pooled, 1, kBytes, g.other));
  TRY(cuMemsetD8Async(g.plain, 1, kBytes, g.other));
  TRY(cuMemsetD8Async(g.managed, 1, kBytes, g.other));
  TRY(cuEventRecord(g.event, g.other));
  TRY(cuStreamSynchronize(g.other));
  CUcontext context = nullptr;
  TRY(cuCtxGetCurrent(&context));
  TRY(cuStreamBeginCapture(g.captured, mode));
  CUresult answer = CUDA_ERROR_UNKNOWN;
  if (elsewhere) {
    std::thread([&] {
      answer = cuCtxSetCurrent(context);
      if (answer == CUDA_SUCCESS) answer = CallAs(&g, call, relaxed);
    }).join();
  } else {
    answer = CallAs(&g, call, relaxed);
  }
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status{};
  const CUresult asked = cuStreamIsCapturing(g.captured, &status);
  const CUresult ended = cuStreamEndCapture(g.captured, &graph);
  Record("beside a capture: %d, status %d %d, end %d", static_cast<int>(answer), static_cast<int>(asked),
         static_cast<int>(status), static_cast<int>(ended));
  if (graph != nullptr) TRY(cuGraphDestroy(graph));
  TRY(cuStreamSynchronize(g.named));
  const bool done = answer == CUDA_SUCCESS;
  if (!done || call != BarredCall::kFree) TRY(cuMemFree(g.plain));
  if (!done || call != BarredCall::kFreeManaged) TRY(cuMemFree(g.managed));
  if (!done || (call != BarredCall::kFreePooled && call != BarredCall::kFreeAsyncOther)) TRY(cuMemFree(g.pooled));
  if (g.made != 0) TRY(cuMemFree(g.made));
  if (g.host != nullptr) TRY(cuMemFreeHost(g.host));
  TRY(cuEventDestroy(g.event));
  TRY(cuStreamDestroy(g.other));
  return cuStreamDestroy(g.captured);
}

}  // namespace differential
