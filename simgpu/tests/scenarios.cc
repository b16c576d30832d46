// One misuse a run, named on the command line. misuse_test.cc checks the messages of the process.
#include <cstring>
#include <string>
#include <thread>

#include "card.h"

using namespace simgpu_test;  // NOLINT(google-build-using-namespace)

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  const std::string name = argv[1];
  Card card;
  CUstream a = card.Stream(), b = card.Stream();
  CUdeviceptr p = card.Managed(64 * kMiB);
  card.Launch(a, {Write(p, 64 * kMiB, 1)});
  OK(cuStreamSynchronize(a));
  if (name == "clean") {
    card.Launch(a, {Read(p, 64 * kMiB, 1)}, 20000, SIMGPU_MUST_BE_RESIDENT);
    card.Prefetch(a, p, 64 * kMiB, false);
    card.Launch(a, {Update(p, 64 * kMiB, 1)});
  } else if (name == "discard-in-use") {
    card.Launch(a, {Read(p, 4 * kMiB, 1)}, 5'000'000);
    card.Discard(b, p + 2 * kMiB, 2 * kMiB);
  } else if (name == "discard-beside-a-transfer") {
    card.Launch(a, {}, 1'000'000);
    card.Prefetch(a, p, 64 * kMiB, false);  // deferred behind unfinished work
    card.Launch(b, {}, 1'000'000);
    card.Discard(b, p + 32 * kMiB, 2 * kMiB);
  } else if (name == "read-discarded") {
    card.Discard(a, p + 8 * kMiB, 2 * kMiB);
    card.Launch(a, {Read(p, 64 * kMiB, 1)});
  } else if (name == "copy-discarded") {
    card.Discard(a, p, 2 * kMiB);
    OK(cuStreamSynchronize(a));
    char byte;
    OK(cuMemcpyDtoH(&byte, p, 1));
  } else if (name == "read-copy-of-discarded") {
    card.Discard(a, p, 2 * kMiB);
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyDtoD(p + 4 * kMiB, p, kMiB));
    char byte;
    OK(cuMemcpyDtoH(&byte, p + 4 * kMiB + 1, 1));
  } else if (name == "write-discarded") {
    card.Discard(a, p, 4 * kMiB);
    card.Prefetch(a, p, 2 * kMiB, true);
    card.Launch(a, {Write(p, 2 * kMiB, 1)});
    card.Launch(a, {Write(p + 2 * kMiB, 2 * kMiB, 1)});
  } else if (name == "reuse-while-in-use") {
    card.Launch(a, {Read(p, 4 * kMiB, 1)}, 5'000'000);
    card.Launch(b, {Write(p + kMiB, kMiB, 2)}, 1000);
  } else if (name == "reuse-overwritten") {
    card.Launch(a, {Write(p + kMiB, kMiB, 2)});
    card.Launch(a, {Read(p, 4 * kMiB, 1)});
  } else if (name == "promise") {
    card.Prefetch(a, p, 2 * kMiB, false);
    card.Launch(a, {Read(p, 4 * kMiB, 1)}, 20000, SIMGPU_MUST_BE_RESIDENT);
  } else if (name == "use-after-free") {
    OK(cuMemFree(p));
    card.Launch(a, {Read(p, 4 * kMiB, 1)});
  } else if (name == "use-after-async-free") {
    CUdeviceptr q;
    OK(cuMemAllocAsync(&q, kMiB, a));
    card.Launch(b, {}, 1'000'000);
    card.Launch(b, {Write(q, kMiB)});
    OK(cuMemFreeAsync(q, a));
  } else if (name == "async-free-in-use") {
    CUdeviceptr q;
    OK(cuMemAllocAsync(&q, kMiB, a));
    card.Launch(b, {Write(q, kMiB)}, 5'000'000);
    OK(cuMemFreeAsync(q, a));
  } else if (name == "unmap-in-use") {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle h;
    CUdeviceptr q;
    OK(cuMemAddressReserve(&q, 2 * kMiB, 0, 0, 0));
    OK(cuMemCreate(&h, 2 * kMiB, &prop, 0));
    OK(cuMemMap(q, 2 * kMiB, 0, h, 0));
    card.Launch(a, {Write(q, kMiB)}, 5'000'000);
    OK(cuMemUnmap(q, 2 * kMiB));
  } else if (name == "unmapped") {
    card.Launch(a, {Read(p + 64 * kMiB, 16 * kMiB)});
  } else if (name == "capture") {
    OK(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_GLOBAL));
    std::thread([&] {
      CUdeviceptr q;
      cuCtxSetCurrent(card.context);
      cuMemAlloc(&q, 4096);
    }).join();
  } else if (name == "capture-prefetch") {
    OK(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUmemLocation l{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    cuMemPrefetchAsync(p, kMiB, l, 0, b);
  } else if (name == "capture-legacy") {
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    cuMemsetD8Async(p, 0, 16, nullptr);
  } else if (name == "capture-error") {
    // With SIMGPU_CAPTURE=error: the driver's error codes, and the capture is invalidated.
    OK(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUdeviceptr q;
    if (cuMemAlloc(&q, 4096) != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return 1;
    CUgraph g;
    if (cuStreamEndCapture(b, &g) != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) return 2;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuMemAlloc(&q, 4096));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamEndCapture(b, &g));
  } else if (name == "deadlock") {
    // Stream a waits for b's event; b waits for a value that only a would write.
    CUdeviceptr flag = card.Unmanaged(512);
    OK(cuMemsetD32(flag, 0, 1));
    CUevent e;
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamWaitValue32(b, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    card.Launch(b, {}, 1000);
    OK(cuEventRecord(e, b));
    OK(cuStreamWaitEvent(a, e, 0));
    card.Launch(a, {}, 1000);
    OK(cuStreamWriteValue32(a, flag, 1, 0));
    OK(cuStreamSynchronize(a));
  } else {
    return 64;
  }
  OK(cuCtxSynchronize());
  std::printf("misuses %llu\n", static_cast<unsigned long long>(card.Stats().misuses));
  return 0;
}
