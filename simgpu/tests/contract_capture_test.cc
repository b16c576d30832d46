// The driver's answers to calls beside a capture that bars unsafe ones, and to those that no capture takes. An H100
// and an H200 with driver 580 gave them (experiments/probes/questions_order.h).
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "contract.h"

using simgpu_test::Context;

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr CUresult kRefused = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

// What calls beside the capture use.
struct Beside {
  CUstream captured = nullptr, other = nullptr;
  CUdeviceptr plain = 0, managed = 0, pool = 0;
  CUevent event = nullptr;
};
using Ask = std::function<CUresult(Beside&)>;

struct Case {
  const char* name;
  Ask call;
};

CUmemLocation Card() {
  CUmemLocation place{};
  place.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return place;
}
CUresult Discard(const Beside& b, CUstream stream) {
  CUdeviceptr p = b.managed;
  size_t bytes = kMiB;
  return cuMemDiscardBatchAsync(&p, &bytes, 1, 0, stream);
}
CUresult Map(size_t bytes, size_t offset) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = Card();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr p = 0;
  YES(cuMemAddressReserve(&p, 8 * kMiB, 0, 0, 0));
  YES(cuMemCreate(&handle, 4 * kMiB, &kind, 0));
  const CUresult mapped = cuMemMap(p, bytes, offset, handle, 0);
  CHECK(cuMemUnmap(p, 8 * kMiB) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(p, 8 * kMiB) == CUDA_SUCCESS);
  return mapped;
}

CUdeviceptr New(bool is_managed) {
  CUdeviceptr p = 0;
  YES(is_managed ? cuMemAllocManaged(&p, kMiB, CU_MEM_ATTACH_GLOBAL) : cuMemAlloc(&p, kMiB));
  return p;
}

// The codes of the call and of the capture's end.
std::pair<CUresult, CUresult> AskBeside(const Ask& call, CUstreamCaptureMode mode, bool elsewhere, bool relaxed,
                                        unsigned flags = CU_STREAM_NON_BLOCKING) {
  setenv("SIMGPU_CAPTURE", "error", 1);
  Context c;
  Beside b;
  YES(cuStreamCreate(&b.captured, flags));
  YES(cuStreamCreate(&b.other, CU_STREAM_NON_BLOCKING));
  b.plain = New(false);
  b.managed = New(true);
  YES(cuMemAllocAsync(&b.pool, kMiB, b.other));
  YES(cuEventCreate(&b.event, 0));
  YES(cuEventRecord(b.event, b.other));
  YES(cuCtxSynchronize());
  YES(cuStreamBeginCapture(b.captured, mode));
  CUresult answer = CUDA_ERROR_UNKNOWN;
  const auto ask = [&] {
    auto mine = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (relaxed) cuThreadExchangeStreamCaptureMode(&mine);
    answer = call(b);
    if (relaxed) cuThreadExchangeStreamCaptureMode(&mine);
  };
  if (elsewhere) {
    std::thread([&] {
      cuCtxSetCurrent(c.context);
      ask();
    }).join();
  } else {
    ask();
  }
  CUgraph graph = nullptr;
  const CUresult ended = cuStreamEndCapture(b.captured, &graph);
  if (graph != nullptr) cuGraphDestroy(graph);
  cuCtxSynchronize();
  for (const CUdeviceptr p : {b.plain, b.managed, b.pool}) cuMemFree(p);  // those that the call left
  cuEventDestroy(b.event);
  cuStreamDestroy(b.captured);
  cuStreamDestroy(b.other);
  return {answer, ended};
}

void Expect(const Case& asked, CUstreamCaptureMode mode, bool elsewhere, bool relaxed, CUresult code, bool breaks) {
  INFO(asked.name << " in mode " << mode << (elsewhere ? " of another thread" : "") << (relaxed ? ", relaxed" : ""));
  const auto [answer, ended] = AskBeside(asked.call, mode, elsewhere, relaxed);
  CHECK(answer == code);
  CHECK(ended == (breaks ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS));
}

constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                          CU_STREAM_CAPTURE_MODE_RELAXED};

}  // namespace

TEST_CASE("unsafe calls are refused beside a capture that bars them, and break it") {
  const std::pair<Case, CUresult> cases[] = {
      {{"alloc", [](Beside& b) { return cuMemAlloc(&b.plain, kMiB); }}, CUDA_SUCCESS},
      {{"alloc_managed", [](Beside& b) { return cuMemAllocManaged(&b.managed, kMiB, CU_MEM_ATTACH_GLOBAL); }},
       CUDA_SUCCESS},
      {{"alloc_pitch",
        [](Beside& b) {
          size_t pitch = 0;
          return cuMemAllocPitch(&b.plain, &pitch, 1024, 16, 4);
        }},
       CUDA_SUCCESS},
      {{"free", [](Beside& b) { return cuMemFree(b.plain); }}, CUDA_SUCCESS},
      {{"free_managed", [](Beside& b) { return cuMemFree(b.managed); }}, CUDA_SUCCESS},
      {{"free_pool", [](Beside& b) { return cuMemFree(b.pool); }}, CUDA_SUCCESS},
      {{"free_nothing", [](Beside&) { return cuMemFree(0x10000); }}, CUDA_ERROR_INVALID_VALUE},
      {{"free_null", [](Beside&) { return cuMemFree(0); }}, CUDA_SUCCESS},
      {{"alloc_async_other", [](Beside& b) { return cuMemAllocAsync(&b.pool, kMiB, b.other); }}, CUDA_SUCCESS},
      {{"free_async_other", [](Beside& b) { return cuMemFreeAsync(b.pool, b.other); }}, CUDA_SUCCESS},
      {{"attach_other", [](Beside& b) { return cuStreamAttachMemAsync(b.other, b.managed, 0, CU_MEM_ATTACH_GLOBAL); }},
       CUDA_SUCCESS},
      {{"advise", [](Beside& b) { return cuMemAdvise(b.managed, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, Card()); }},
       CUDA_SUCCESS},
  };
  for (const auto& [asked, free_code] : cases) {
    for (const CUstreamCaptureMode mode : kModes) {
      for (const bool elsewhere : {false, true}) {
        const bool barred =
            mode == CU_STREAM_CAPTURE_MODE_GLOBAL || (mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && !elsewhere);
        Expect(asked, mode, elsewhere, false, barred ? kRefused : free_code, barred);
        Expect(asked, mode, elsewhere, true, free_code, false);
      }
    }
  }
}

TEST_CASE("no capture takes a discard, a prefetch or an attachment in its stream") {
  const Case cases[] = {
      {"discard", [](Beside& b) { return Discard(b, b.captured); }},
      {"prefetch", [](Beside& b) { return cuMemPrefetchAsync(b.managed, kMiB, Card(), 0, b.captured); }},
      {"attach", [](Beside& b) { return cuStreamAttachMemAsync(b.captured, b.managed, 0, CU_MEM_ATTACH_GLOBAL); }},
  };
  for (const Case& asked : cases) {
    for (const CUstreamCaptureMode mode : kModes) {
      for (const bool elsewhere : {false, true}) {
        for (const bool relaxed : {false, true}) Expect(asked, mode, elsewhere, relaxed, kRefused, true);
      }
    }
  }
}

TEST_CASE("a capture that blocks the legacy stream breaks at any call that queues there or waits for it") {
  const CUstream legacy = CU_STREAM_LEGACY;
  const Case cases[] = {
      {"alloc_async", [=](Beside& b) { return cuMemAllocAsync(&b.pool, kMiB, legacy); }},
      {"attach", [=](Beside& b) { return cuStreamAttachMemAsync(legacy, b.managed, 0, CU_MEM_ATTACH_GLOBAL); }},
      {"attach_unknown_flags", [=](Beside& b) { return cuStreamAttachMemAsync(legacy, b.managed, 0, 64); }},
      {"fill", [=](Beside& b) { return cuMemsetD8Async(b.managed, 1, 16, legacy); }},
      {"free_async", [=](Beside& b) { return cuMemFreeAsync(b.pool, legacy); }},
      {"free_async_managed", [=](Beside& b) { return cuMemFreeAsync(b.managed, legacy); }},
      {"prefetch", [=](Beside& b) { return cuMemPrefetchAsync(b.managed, kMiB, Card(), 0, legacy); }},
      {"query", [=](Beside&) { return cuStreamQuery(legacy); }},
      {"record", [=](Beside& b) { return cuEventRecord(b.event, legacy); }},
      {"synchronize", [=](Beside&) { return cuStreamSynchronize(legacy); }},
      {"wait", [=](Beside& b) { return cuStreamWaitEvent(legacy, b.event, 0); }},
  };
  for (const Case& asked : cases) {
    for (const CUstreamCaptureMode mode : kModes) {
      for (const bool elsewhere : {false, true}) {
        INFO(asked.name << " in mode " << mode << (elsewhere ? " of another thread" : ""));
        const auto [answer, ended] = AskBeside(asked.call, mode, elsewhere, false, CU_STREAM_DEFAULT);
        CHECK(answer == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        CHECK(ended == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
      }
    }
  }
}

TEST_CASE("calls that are safe beside any capture") {
  static unsigned char host[64];
  const Case cases[] = {
      {"discard_other", [](Beside& b) { return Discard(b, b.other); }},
      {"prefetch_other", [](Beside& b) { return cuMemPrefetchAsync(b.managed, kMiB, Card(), 0, b.other); }},
      {"alloc_async_here", [](Beside& b) { return cuMemAllocAsync(&b.pool, kMiB, b.captured); }},
      {"copy_from_host", [](Beside& b) { return cuMemcpyHtoD(b.plain, host, sizeof host); }},
      {"copy_to_host", [](Beside& b) { return cuMemcpyDtoH(host, b.plain, sizeof host); }},
      {"map", [](Beside&) { return Map(4 * kMiB, 0); }},
  };
  for (const Case& asked : cases) {
    for (const CUstreamCaptureMode mode : kModes) {
      for (const bool elsewhere : {false, true}) Expect(asked, mode, elsewhere, false, CUDA_SUCCESS, false);
    }
  }
}

TEST_CASE("a handle is mapped as a whole, and addresses without a mapping are unmapped") {
  Context c;
  CHECK(Map(2 * kMiB, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(Map(2 * kMiB, 2 * kMiB) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(Map(kMiB, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(Map(6 * kMiB, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(Map(4 * kMiB, 0) == CUDA_SUCCESS);  // and unmaps it together with the addresses behind it
  CUdeviceptr p = 0;
  YES(cuMemAddressReserve(&p, 8 * kMiB, 0, 0, 0));
  CHECK(cuMemUnmap(p, 4 * kMiB) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(p, 4 * kMiB) == CUDA_SUCCESS);
  YES(cuMemAddressFree(p, 8 * kMiB));
  CHECK(cuMemUnmap(0x100000000, 8 * kMiB) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a free in stream order takes null, and no managed memory of cuMemAllocManaged") {
  Context c;
  CUdeviceptr p = New(true);
  CUstream stream = nullptr;
  YES(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuMemFreeAsync(0, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(p, stream) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuMemFreeAsync(p, CU_STREAM_LEGACY) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuMemFreeAsync(p + 4096, stream) == CUDA_ERROR_INVALID_VALUE);
  YES(cuMemFree(p));
  p = New(false);
  CHECK(cuMemFreeAsync(p, stream) == CUDA_SUCCESS);
  YES(cuStreamDestroy(stream));
}
