// The questions of questions.cu about waits: which calls join the legacy stream's barrier, and which wait on the host.
#pragma once

#include "questions_order.h"

inline void CUDA_CB DoNothing(void*) {}

struct StreamBlocks {
  CUdeviceptr alloc, alloc2, managed, pool;
  CUevent event;  // recorded in another stream that does not block, and over
  CUevent untimed;
};
struct StreamCall {
  const char* name;
  std::function<CUresult(StreamBlocks&, CUstream)> make;
};

#define IN_STREAM(expression) [](StreamBlocks& b, CUstream s) { return (void)b, (void)s, expression; }
inline const StreamCall kBarrierCalls[] = {
    {"nothing", IN_STREAM(CUDA_SUCCESS)},
    {"alloc_async",
     [](StreamBlocks&, CUstream s) {
       CUdeviceptr p = 0;
       return cuMemAllocAsync(&p, kMiB, s);
     }},
    {"alloc_async_large",
     [](StreamBlocks&, CUstream s) {
       CUdeviceptr p = 0;
       return cuMemAllocAsync(&p, 64 * kMiB, s);
     }},
    {"free_async_pool", IN_STREAM(cuMemFreeAsync(b.pool, s))},
    {"free_async_alloc", IN_STREAM(cuMemFreeAsync(b.alloc, s))},
    {"free_async_managed", IN_STREAM(cuMemFreeAsync(b.managed, s))},
    {"prefetch", IN_STREAM(cuMemPrefetchAsync(b.managed, kMiB, OnCard(), 0, s))},
    {"attach", IN_STREAM(cuStreamAttachMemAsync(s, b.managed, 0, CU_MEM_ATTACH_GLOBAL))},
    {"memset", IN_STREAM(cuMemsetD8Async(b.alloc, 1, 16, s))},
    {"memset_nothing", IN_STREAM(cuMemsetD8Async(b.alloc, 1, 0, s))},
    {"copy", IN_STREAM(cuMemcpyDtoDAsync(b.alloc2, b.alloc, kMiB, s))},
    {"copy_nothing", IN_STREAM(cuMemcpyDtoDAsync(b.alloc2, b.alloc, 0, s))},
    {"host_function", IN_STREAM(cuLaunchHostFunc(s, DoNothing, nullptr))},
    {"event_record", IN_STREAM(cuEventRecord(b.event, s))},
    {"untimed_event_record", IN_STREAM(cuEventRecord(b.untimed, s))},
    {"wait_event", IN_STREAM(cuStreamWaitEvent(s, b.event, 0))},
    {"graph_of_nothing",
     [](StreamBlocks&, CUstream s) {
       static CUgraphExec exec = [] {
         CUgraph g = nullptr;
         CUgraphExec e = nullptr;
         NEED(cuGraphCreate(&g, 0));
         NEED(cuGraphInstantiate(&e, g, 0));
         return e;
       }();
       return cuGraphLaunch(exec, s);
     }},
    {"graph_of_empty_node",
     [](StreamBlocks&, CUstream s) {
       CUgraph g = nullptr;
       CUgraphNode n = nullptr;
       CUgraphExec e = nullptr;
       NEED(cuGraphCreate(&g, 0));
       NEED(cuGraphAddEmptyNode(&n, g, nullptr, 0));
       NEED(cuGraphInstantiate(&e, g, 0));
       return cuGraphLaunch(e, s);
     }},
    {"upload_of_nothing",
     [](StreamBlocks&, CUstream s) {
       CUgraph g = nullptr;
       CUgraphExec e = nullptr;
       NEED(cuGraphCreate(&g, 0));
       NEED(cuGraphInstantiate(&e, g, 0));
       return cuGraphUpload(e, s);
     }},
    {"write_value", IN_STREAM(cuStreamWriteValue32(s, b.alloc, 1, 0))},
};

// `waiting` waits from now on for the host, which lets it go on after so long. The thread is to be joined.
inline std::thread Close(CUstream waiting, int milliseconds) {
  void* pinned = nullptr;
  NEED(cuMemHostAlloc(&pinned, 4 * kKiB, 0));
  auto* word = static_cast<volatile uint32_t*>(pinned);
  *word = 0;
  NEED(cuStreamWaitValue32(waiting, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
  return std::thread([word, milliseconds] {
    usleep(milliseconds * 1'000);
    *word = 1;
  });
}

// Whether a blocking stream waits for work of the legacy stream, and the reverse, through `call` alone: `waiting` waits
// for the host, `call` is made in `middle`, and `asked` is asked whether its work is done.
inline void Barrier(const StreamCall& call, bool from_legacy) {
  StreamBlocks b{Allocate(kMiB), Allocate(kMiB), Managed(kMiB), OfPool(nullptr, kMiB), nullptr, nullptr};
  CUstream waiting = nullptr, asked = nullptr;
  for (CUstream* s : {&waiting, &asked}) NEED(cuStreamCreate(s, 0));
  NEED(cuEventCreate(&b.event, 0));
  NEED(cuEventCreate(&b.untimed, CU_EVENT_DISABLE_TIMING));
  NEED(cuEventRecord(b.event, other));
  NEED(cuCtxSynchronize());
  if (from_legacy) waiting = CU_STREAM_LEGACY;
  std::thread opener = Close(waiting, 100);
  const auto begin = std::chrono::steady_clock::now();
  const CUresult code = call.make(b, from_legacy ? asked : CU_STREAM_LEGACY);
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  if (!from_legacy) NEED(cuMemsetD8Async(b.alloc2, 1, 16, asked));
  // The simulated driver's time runs by calls.
  CUresult done = CUDA_ERROR_NOT_READY;
  for (int i = 0; i < 40 && done == CUDA_ERROR_NOT_READY; ++i) {
    usleep(1'000);
    done = cuStreamQuery(asked);
  }
  opener.join();
  NEED(cuCtxSynchronize());
  Say("order", "%d %s, %s", code, ms > 50 ? "waits" : "at once",
      done == CUDA_SUCCESS           ? "no barrier"
      : done == CUDA_ERROR_NOT_READY ? "a barrier"
                                     : "an error");
}

// Calls that name no stream, while a stream waits that uses none of their objects.
struct HostCall {
  const char* name;
  std::function<std::function<CUresult()>()> prepare;
};
inline CUcontext NewContext() {
  CUcontext made = nullptr;
  NEED(cuCtxCreate_v4(&made, nullptr, 0, device));
  return made;
}
inline const HostCall kHostCalls[] = {
    {"free",
     [] {
       const CUdeviceptr p = Allocate(kMiB);
       return [=] { return cuMemFree(p); };
     }},
    {"free_of_other_context",
     [] {
       const CUcontext here = context;
       NewContext();
       const CUdeviceptr p = Allocate(kMiB);
       NEED(cuCtxSetCurrent(here));
       return [=] { return cuMemFree(p); };
     }},
    {"free_in_other_context",
     [] {
       const CUdeviceptr p = Allocate(kMiB);
       NewContext();
       return [=] { return cuMemFree(p); };
     }},
    {"free_of_and_in_other_context",
     [] {
       NewContext();
       const CUdeviceptr p = Allocate(kMiB);
       return [=] { return cuMemFree(p); };
     }},
    {"free_of_small",
     [] {
       const CUdeviceptr p = Allocate(512);
       return [=] { return cuMemFree(p); };
     }},
    {"free_of_large",
     [] {
       const CUdeviceptr p = Allocate(64 * kMiB);
       return [=] { return cuMemFree(p); };
     }},
    {"free_of_managed",
     [] {
       const CUdeviceptr p = Managed(kMiB);
       return [=] { return cuMemFree(p); };
     }},
    {"free_of_pool",
     [] {
       const CUdeviceptr p = OfPool(nullptr, kMiB);
       return [=] { return cuMemFree(p); };
     }},
    {"free_of_null", [] { return [] { return cuMemFree(0); }; }},
    {"free_of_nothing", [] { return [] { return cuMemFree(0x10000); }; }},
    {"free_host",
     [] {
       void* p = nullptr;
       NEED(cuMemHostAlloc(&p, kMiB, 0));
       return [=] { return cuMemFreeHost(p); };
     }},
    {"host_alloc",
     [] {
       return [] {
         void* p = nullptr;
         return cuMemHostAlloc(&p, kMiB, 0);
       };
     }},
    {"host_unregister",
     [] {
       void* p = std::aligned_alloc(4 * kKiB, kMiB);
       NEED(cuMemHostRegister(p, kMiB, 0));
       return [=] { return cuMemHostUnregister(p); };
     }},
    {"unmap",
     [] {
       CUmemGenericAllocationHandle handle = 0;
       const CUdeviceptr p = Mapped(2 * kMiB, 8 * kMiB, &handle);
       return [=] { return cuMemUnmap(p, 2 * kMiB); };
     }},
    {"map",
     [] {
       const CUmemAllocationProp kind = OfCard();
       CUmemGenericAllocationHandle handle = 0;
       CUdeviceptr p = 0;
       NEED(cuMemAddressReserve(&p, 2 * kMiB, 0, 0, 0));
       NEED(cuMemCreate(&handle, 2 * kMiB, &kind, 0));
       return [=] { return cuMemMap(p, 2 * kMiB, 0, handle, 0); };
     }},
    {"release",
     [] {
       const CUmemAllocationProp kind = OfCard();
       CUmemGenericAllocationHandle handle = 0;
       NEED(cuMemCreate(&handle, 2 * kMiB, &kind, 0));
       return [=] { return cuMemRelease(handle); };
     }},
    {"array_destroy",
     [] {
       CUDA_ARRAY_DESCRIPTOR shape{};
       shape.Width = shape.Height = 512;
       shape.Format = CU_AD_FORMAT_FLOAT;
       shape.NumChannels = 1;
       CUarray array = nullptr;
       NEED(cuArrayCreate(&array, &shape));
       return [=] { return cuArrayDestroy(array); };
     }},
    {"pool_trim",
     [] {
       CUmemoryPool pool = nullptr;
       NEED(cuDeviceGetDefaultMemPool(&pool, device));
       return [=] { return cuMemPoolTrimTo(pool, 0); };
     }},
    {"stream_destroy",
     [] {
       CUstream s = nullptr;
       NEED(cuStreamCreate(&s, 0));
       return [=] { return cuStreamDestroy(s); };
     }},
};

inline void BesideWait(const HostCall& call) {
  const auto make = call.prepare();
  std::thread opener = Close(stream, 300);
  Timed("beside", make);
  opener.join();
}

inline void AskOfBarriers() {
  for (const StreamCall& call : kBarrierCalls) {
    Ask(std::string("barrier.") + call.name, [&] { Barrier(call, false); });
    Ask(std::string("behind_legacy.") + call.name, [&] { Barrier(call, true); });
  }
  for (const HostCall& call : kHostCalls) Ask(std::string("waits.") + call.name, [&] { BesideWait(call); });
}
