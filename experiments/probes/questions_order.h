// The questions of questions.cu about order: frees of memory in use and of the wrong kind, calls beside a capture.
#pragma once

#include "questions.h"

inline void CUDA_CB Sleep300(void*) { usleep(300'000); }

// The call's code and how many milliseconds it took while the stream sleeps for 300.
inline void Timed(const std::string& key, const std::function<CUresult()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  const CUresult code = call();
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  Say(key, "%d %s", code, ms > 150 ? "waits" : "at once");
}

// Whether a free waits for work, and what else then fails.
inline void FreeInUse(const std::function<CUdeviceptr()>& make, const std::function<CUresult(CUdeviceptr)>& free) {
  const CUdeviceptr p = make();
  NEED(cuLaunchHostFunc(stream, Sleep300, nullptr));
  NEED(cuMemsetD8Async(p, 1, kMiB, stream));
  Timed("free", [&] { return free(p); });
  Say("stream_after", cuStreamSynchronize(stream));
  Say("alloc_after", [&] {
    CUdeviceptr q = 0;
    return cuMemAlloc(&q, kMiB);
  }());
}

// Frees of one kind of memory that nothing uses.
inline void Frees(const std::function<CUdeviceptr()>& make) {
  CUdeviceptr p = make();
  Say("inside", cuMemFree(p + 4096));
  Say("at_end", cuMemFree(p + kMiB));
  Say("async_inside", cuMemFreeAsync(p + 4096, stream));
  Say("free", cuMemFree(p));
  Say("twice", cuMemFree(p));
  Say("async_after_free", cuMemFreeAsync(p, stream));
  p = make();
  Say("async", cuMemFreeAsync(p, stream));
  Say("async_twice", cuMemFreeAsync(p, stream));
  Say("free_after_async", cuMemFree(p));
  Say("stream_after", cuStreamSynchronize(stream));
  p = make();
  Say("async_on_legacy", cuMemFreeAsync(p, CU_STREAM_LEGACY));
  Say("context_after", cuCtxSynchronize());
  Say("free_after_async_and_wait", cuMemFree(p));
}

inline void OddFrees() {
  Say("null", cuMemFree(0));
  Say("async_null", cuMemFreeAsync(0, stream));
  Say("nothing", cuMemFree(0x10000));
  Say("async_nothing", cuMemFreeAsync(0x10000, stream));
  void* pinned = nullptr;
  NEED(cuMemHostAlloc(&pinned, kMiB, 0));
  Say("pinned", cuMemFree(reinterpret_cast<CUdeviceptr>(pinned)));
  Say("async_pinned", cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(pinned), stream));
  Say("host_of_alloc", cuMemFreeHost(reinterpret_cast<void*>(Allocate(kMiB))));
  Say("host_of_managed", cuMemFreeHost(reinterpret_cast<void*>(Managed(kMiB))));
}

inline void BesideBusyStream() {
  CUdeviceptr p = 0, spare = Allocate(kMiB), spare_managed = Managed(kMiB), spare_pool = OfPool(nullptr, kMiB);
  const auto ask = [](const char* key, const std::function<CUresult()>& call) {
    NEED(cuStreamSynchronize(stream));
    NEED(cuLaunchHostFunc(stream, Sleep300, nullptr));
    Timed(key, call);
  };
  ask("alloc", [&] { return cuMemAlloc(&p, kMiB); });
  ask("large_alloc", [&] { return cuMemAlloc(&p, 64 * kMiB); });
  ask("alloc_managed", [&] { return cuMemAllocManaged(&p, kMiB, CU_MEM_ATTACH_GLOBAL); });
  ask("free", [&] { return cuMemFree(spare); });
  ask("free_managed", [&] { return cuMemFree(spare_managed); });
  ask("free_pool", [&] { return cuMemFree(spare_pool); });
  Say("alloc_size0", cuMemAlloc(&p, 0));
  Say("alloc_managed_size0", cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
  Say("alloc_async_size0", cuMemAllocAsync(&p, 0, stream));
}

struct Captured {
  CUdeviceptr alloc, managed, pool;
  CUevent event;
  CUmemGenericAllocationHandle handle;
};
struct CaptureCall {
  const char* name;
  std::function<CUresult(Captured&)> make;
};

inline const char* const kImage = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n";

inline CUresult Discard(Captured& c, CUstream s) {
  size_t bytes = kMiB;
  return cuMemDiscardBatchAsync(&c.managed, &bytes, 1, 0, s);
}
inline CUresult LoadImage() {
  CUmodule module = nullptr;
  const char* simulated = std::getenv("LD_LIBRARY_PATH");
  const bool text = simulated != nullptr && std::strstr(simulated, "simgpu") != nullptr;
  return cuModuleLoadData(&module, text ? "simgpu-module 1\nkernel nothing params 8 ns 1000\n" : kImage);
}

#define CALL(expression) [](Captured& c) { return (void)c, expression; }
inline const CaptureCall kCaptureCalls[] = {
    {"nothing", CALL(CUDA_SUCCESS)},
    {"alloc", CALL(cuMemAlloc(&c.alloc, kMiB))},
    {"alloc_managed", CALL(cuMemAllocManaged(&c.managed, kMiB, CU_MEM_ATTACH_GLOBAL))},
    {"alloc_host",
     [](Captured&) {
       void* p = nullptr;
       return cuMemHostAlloc(&p, kMiB, 0);
     }},
    {"free", CALL(cuMemFree(c.alloc))},
    {"free_managed", CALL(cuMemFree(c.managed))},
    {"free_pool", CALL(cuMemFree(c.pool))},
    {"free_nothing", CALL(cuMemFree(0x10000))},
    {"free_null", CALL(cuMemFree(0))},
    {"alloc_async_here", CALL(cuMemAllocAsync(&c.pool, kMiB, stream))},
    {"alloc_async_other", CALL(cuMemAllocAsync(&c.pool, kMiB, other))},
    {"free_async_here", CALL(cuMemFreeAsync(c.pool, stream))},
    {"free_async_other", CALL(cuMemFreeAsync(c.pool, other))},
    {"discard_here", CALL(Discard(c, stream))},
    {"discard_other", CALL(Discard(c, other))},
    {"prefetch_here", CALL(cuMemPrefetchAsync(c.managed, kMiB, OnCard(), 0, stream))},
    {"prefetch_other", CALL(cuMemPrefetchAsync(c.managed, kMiB, OnCard(), 0, other))},
    {"advise", CALL(cuMemAdvise(c.managed, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, OnCard()))},
    {"attach_here", CALL(cuStreamAttachMemAsync(stream, c.managed, 0, CU_MEM_ATTACH_GLOBAL))},
    {"attach_other", CALL(cuStreamAttachMemAsync(other, c.managed, 0, CU_MEM_ATTACH_GLOBAL))},
    {"vmm_unmap_nothing",
     [](Captured&) {
       CUdeviceptr p = 0;
       NEED(cuMemAddressReserve(&p, 2 * kMiB, 0, 0, 0));
       return cuMemUnmap(p, 2 * kMiB);
     }},
    {"copy_large_from_host",
     [](Captured& c) {
       static std::vector<uint8_t> bytes(kMiB);
       return cuMemcpyHtoD(c.alloc, bytes.data(), bytes.size());
     }},
    {"ipc_get",
     [](Captured& c) {
       CUipcMemHandle handle{};
       return cuIpcGetMemHandle(&handle, c.alloc);
     }},
    {"memset", CALL(cuMemsetD8(c.alloc, 1, 16))},
    {"memset_here", CALL(cuMemsetD8Async(c.alloc, 1, 16, stream))},
    {"memset_legacy", CALL(cuMemsetD8Async(c.alloc, 1, 16, CU_STREAM_LEGACY))},
    {"copy", CALL(cuMemcpyDtoD(c.alloc, c.alloc + 4096, 16))},
    {"copy_from_host",
     [](Captured& c) {
       char b[64] = {};
       return cuMemcpyHtoD(c.alloc, b, sizeof b);
     }},
    {"copy_to_host",
     [](Captured& c) {
       char b[64] = {};
       return cuMemcpyDtoH(b, c.alloc, sizeof b);
     }},
    {"copy_any_from_host",
     [](Captured& c) {
       char b[64] = {};
       return cuMemcpy(c.alloc, reinterpret_cast<CUdeviceptr>(b), sizeof b);
     }},
    {"copy_async_legacy", CALL(cuMemcpyDtoDAsync(c.alloc, c.alloc + 4096, 16, CU_STREAM_LEGACY))},
    {"free_async_made_here",
     [](Captured& c) {
       const CUresult made = cuMemAllocAsync(&c.pool, kMiB, stream);
       return made != CUDA_SUCCESS ? made : cuMemFreeAsync(c.pool, stream);
     }},
    {"vmm_map",
     [](Captured& c) {
       CUdeviceptr p = 0;
       NEED(cuMemAddressReserve(&p, 2 * kMiB, 0, 0, 0));
       return cuMemMap(p, 2 * kMiB, 0, c.handle, 0);
     }},
    {"host_register", [](Captured&) { return cuMemHostRegister(std::aligned_alloc(4 * kKiB, kMiB), kMiB, 0); }},
    {"attributes",
     [](Captured& c) {
       uint64_t value = 0;
       return cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, c.alloc);
     }},
    {"copy_here", CALL(cuMemcpyDtoDAsync(c.alloc, c.alloc + 4096, 16, stream))},
    {"batch_here",
     [](Captured& c) {
       CUmemcpyAttributes how{};
       how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
       size_t first = 0, bytes = 16;
       CUdeviceptr from = c.alloc + 4096;
       return cuMemcpyBatchAsync(&c.alloc, &from, &bytes, 1, &how, &first, 1, stream);
     }},
    {"sync_here", CALL(cuStreamSynchronize(stream))},
    {"sync_other", CALL(cuStreamSynchronize(other))},
    {"query_here", CALL(cuStreamQuery(stream))},
    {"query_other", CALL(cuStreamQuery(other))},
    {"sync_legacy", CALL(cuStreamSynchronize(CU_STREAM_LEGACY))},
    {"event_query", CALL(cuEventQuery(c.event))},
    {"event_sync", CALL(cuEventSynchronize(c.event))},
    {"event_record_here", CALL(cuEventRecord(c.event, stream))},
    {"context_sync", CALL(cuCtxSynchronize())},
    {"load_module", CALL(LoadImage())},
    {"stream_create",
     [](Captured&) {
       CUstream s = nullptr;
       return cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
     }},
    {"event_create",
     [](Captured&) {
       CUevent e = nullptr;
       return cuEventCreate(&e, 0);
     }},
    {"get_info",
     [](Captured&) {
       size_t a = 0, b = 0;
       return cuMemGetInfo(&a, &b);
     }},
    {"vmm_create",
     [](Captured& c) {
       auto kind = OfCard();
       return cuMemCreate(&c.handle, 2 * kMiB, &kind, 0);
     }},
    {"vmm_reserve", [](Captured& c) { return cuMemAddressReserve(&c.alloc, 2 * kMiB, 0, 0, 0); }},
    {"vmm_release", CALL(cuMemRelease(c.handle))},
    {"pool_create",
     [](Captured&) {
       CUmemPoolProps kind{};
       kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
       kind.location = OnCard();
       CUmemoryPool pool = nullptr;
       return cuMemPoolCreate(&pool, &kind);
     }},
    {"pool_trim",
     [](Captured&) {
       CUmemoryPool pool = nullptr;
       NEED(cuDeviceGetDefaultMemPool(&pool, device));
       return cuMemPoolTrimTo(pool, 0);
     }},
};

// Calls that name the legacy stream, which a blocking stream's capture makes unusable.
inline const CaptureCall kLegacyCalls[] = {
    {"attach", CALL(cuStreamAttachMemAsync(CU_STREAM_LEGACY, c.managed, 0, CU_MEM_ATTACH_GLOBAL))},
    {"attach_unknown_flags", CALL(cuStreamAttachMemAsync(CU_STREAM_LEGACY, c.managed, 0, 64))},
    {"attach_other", CALL(cuStreamAttachMemAsync(other, c.managed, 0, CU_MEM_ATTACH_GLOBAL))},
    {"prefetch", CALL(cuMemPrefetchAsync(c.managed, kMiB, OnCard(), 0, CU_STREAM_LEGACY))},
    {"discard", CALL(Discard(c, CU_STREAM_LEGACY))},
    {"memset", CALL(cuMemsetD8Async(c.managed, 1, 16, CU_STREAM_LEGACY))},
    {"free_async", CALL(cuMemFreeAsync(c.pool, CU_STREAM_LEGACY))},
    {"free_async_managed", CALL(cuMemFreeAsync(c.managed, CU_STREAM_LEGACY))},
    {"free", CALL(cuMemFree(c.managed))},
    {"alloc_async", CALL(cuMemAllocAsync(&c.pool, kMiB, CU_STREAM_LEGACY))},
    {"event_record", CALL(cuEventRecord(c.event, CU_STREAM_LEGACY))},
    {"wait_event", CALL(cuStreamWaitEvent(CU_STREAM_LEGACY, c.event, 0))},
    {"sync", CALL(cuStreamSynchronize(CU_STREAM_LEGACY))},
    {"query", CALL(cuStreamQuery(CU_STREAM_LEGACY))},
    {"alloc_managed", CALL(cuMemAllocManaged(&c.managed, kMiB, CU_MEM_ATTACH_GLOBAL))},
};

inline void BesideCapture(const CaptureCall& call) {
  const std::pair<const char*, CUstreamCaptureMode> modes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
                                                               {"thread", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
                                                               {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED}};
  for (const auto& [mode, how] : modes) {
    for (const bool elsewhere : {false, true}) {
      Captured c{Allocate(kMiB), Managed(kMiB), OfPool(nullptr, kMiB), nullptr, 0};
      const CUmemAllocationProp kind = OfCard();
      NEED(cuMemCreate(&c.handle, 2 * kMiB, &kind, 0));
      NEED(cuEventCreate(&c.event, 0));
      NEED(cuEventRecord(c.event, other));
      NEED(cuStreamSynchronize(other));
      NEED(cuStreamBeginCapture(stream, how));
      CUresult code = CUDA_SUCCESS;
      if (elsewhere) {
        std::thread([&] {
          NEED(cuCtxSetCurrent(context));
          code = call.make(c);
        }).join();
      } else {
        code = call.make(c);
      }
      CUgraph graph = nullptr;
      CUstreamCaptureStatus status{};
      const CUresult asked = cuStreamIsCapturing(stream, &status);
      const CUresult ended = cuStreamEndCapture(stream, &graph);
      Say(std::string(mode) + (elsewhere ? ".other_thread" : ""), "%d is_capturing %d %d end %d", code, asked, status,
          ended);
    }
  }
}

inline void AskOfOrder() {
  const std::pair<const char*, std::function<CUdeviceptr()>> kinds[] = {{"alloc", [] { return Allocate(kMiB); }},
                                                                        {"managed", [] { return Managed(kMiB); }},
                                                                        {"pool", [] { return OfPool(nullptr, kMiB); }}};
  for (const auto& [kind, make] : kinds) {
    Ask(std::string("free.") + kind, [&, make = make] { Frees(make); });
    const std::string in_use = std::string("free_in_use.") + kind;
    Ask(in_use + ".free", [&, make = make] { FreeInUse(make, [](CUdeviceptr p) { return cuMemFree(p); }); });
    Ask(in_use + ".async",
        [&, make = make] { FreeInUse(make, [](CUdeviceptr p) { return cuMemFreeAsync(p, stream); }); });
    Ask(in_use + ".other",
        [&, make = make] { FreeInUse(make, [](CUdeviceptr p) { return cuMemFreeAsync(p, other); }); });
  }
  Ask("free.odd", OddFrees);
  Ask("busy", BesideBusyStream);
  for (const CaptureCall& call : kCaptureCalls) Ask(std::string("capture.") + call.name, [&] { BesideCapture(call); });
  for (const CaptureCall& call : kLegacyCalls) {
    Ask(std::string("capture_blocking.") + call.name, [&] {
      NEED(cuStreamCreate(&stream, 0));
      BesideCapture(call);
    });
  }
}
