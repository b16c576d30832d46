// The contract of any CUDA driver: green contexts. See contract_test.cc.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "contract.h"

using simgpu_test::Context;

namespace {

constexpr CUdevResourceType kSm = CU_DEV_RESOURCE_TYPE_SM;

CUgreenCtx MakeGreen(unsigned multiprocessors) {
  CUdevResource all{}, part{};
  unsigned count = 1;
  YES(cuDeviceGetDevResource(0, &all, kSm));
  YES(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, multiprocessors));
  CUdevResourceDesc description = nullptr;
  YES(cuDevResourceGenerateDesc(&description, &part, 1));
  CUgreenCtx green = nullptr;
  YES(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  return green;
}

CUstream GreenStream(CUgreenCtx green) {
  CUstream s = nullptr;
  YES(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
  return s;
}

// Keeps a stream busy until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  void Close(CUstream s) {
    YES(cuLaunchHostFunc(
        s,
        [](void* p) {
          while (!static_cast<Gate*>(p)->open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        this));
  }
};

}  // namespace

TEST_CASE("multiprocessors are split into parts of a multiple of eight") {
  Context c;
  CUdevResource all{};
  YES(cuDeviceGetDevResource(0, &all, kSm));
  CHECK(all.type == kSm);
  CHECK(all.sm.smCount >= 16);
  CHECK(all.sm.minSmPartitionSize == 8);
  CHECK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_INVALID) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK(cuDeviceGetDevResource(9, &all, kSm) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceGetDevResource(0, nullptr, kSm) == CUDA_ERROR_INVALID_VALUE);

  std::vector<CUdevResource> parts(64);
  CUdevResource rest{};
  unsigned count = 64, most = 0;
  YES(cuDevSmResourceSplitByCount(parts.data(), &count, &all, &rest, 0, 9));
  YES(cuDevSmResourceSplitByCount(nullptr, &most, &all, nullptr, 0, 16));
  CHECK(count == all.sm.smCount / 16);
  CHECK(most == count);
  CHECK(parts[0].sm.smCount == 16);
  CHECK(count * 16 + (rest.type == kSm ? rest.sm.smCount : 0) == all.sm.smCount);
  count = 2;
  YES(cuDevSmResourceSplitByCount(parts.data(), &count, &all, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING,
                                  9));
  CHECK(count == 2);
  CHECK(parts[1].sm.smCount == 10);
  CHECK(rest.sm.smCount == all.sm.smCount - 20);
  count = 1;
  YES(cuDevSmResourceSplitByCount(parts.data(), &count, &all, &rest, 0, all.sm.smCount));
  CHECK(count == 1);
  CHECK(rest.type == CU_DEV_RESOURCE_TYPE_INVALID);

  CHECK(cuDevSmResourceSplitByCount(parts.data(), &count, &all, &rest, 0, all.sm.smCount + 1) ==
        CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK(cuDevSmResourceSplitByCount(parts.data(), nullptr, &all, &rest, 0, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDevSmResourceSplitByCount(parts.data(), &count, nullptr, &rest, 0, 8) == CUDA_ERROR_INVALID_VALUE);
  CUdevResource again{};
  CHECK(cuDevSmResourceSplitByCount(&again, &count, &parts[0], nullptr, 0, 8) ==
        CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CUdevResource wrong{};
  CHECK(cuDevSmResourceSplitByCount(parts.data(), &count, &wrong, nullptr, 0, 8) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUdevResourceDesc description = nullptr;
  CHECK(cuDevResourceGenerateDesc(&description, &wrong, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  count = 0;
  CHECK(cuDevSmResourceSplitByCount(parts.data(), &count, &all, nullptr, 0, 8) == CUDA_ERROR_INVALID_VALUE);

  // Several parts make one green context.
  count = 2;
  YES(cuDevSmResourceSplitByCount(parts.data(), &count, &all, nullptr, 0, 8));
  YES(cuDevResourceGenerateDesc(&description, parts.data(), 2));
  CUgreenCtx green = nullptr;
  YES(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUdevResource own{};
  YES(cuGreenCtxGetDevResource(green, &own, kSm));
  CHECK(own.sm.smCount == 16);
  count = 1;
  YES(cuDevSmResourceSplitByCount(&again, &count, &own, &rest, 0, 8));
  CHECK(again.sm.smCount == 8);
  CHECK(rest.sm.smCount == 8);
  CHECK(cuGreenCtxCreate(&green, description, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGreenCtxCreate(&green, description, 9, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_DEVICE);
  YES(cuGreenCtxDestroy(green));
}

TEST_CASE("a green context is current once converted, and owns nothing but streams") {
  Context c;
  CUgreenCtx green = MakeGreen(16);
  CHECK(cuCtxSetCurrent(reinterpret_cast<CUcontext>(green)) == CUDA_ERROR_INVALID_CONTEXT);
  CUcontext converted = nullptr, again = nullptr, seen = nullptr;
  YES(cuCtxFromGreenCtx(&converted, green));
  YES(cuCtxFromGreenCtx(&again, green));
  CHECK(converted == again);
  CHECK(converted != c.context);
  CUstream s = nullptr;
  CHECK(cuGreenCtxStreamCreate(&s, green, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGreenCtxStreamCreate(&s, nullptr, CU_STREAM_NON_BLOCKING, 0) == CUDA_ERROR_INVALID_CONTEXT);
  YES(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, -1));
  int priority = 0;
  YES(cuStreamGetPriority(s, &priority));
  CHECK(priority == -1);
  CUgreenCtx of = nullptr;
  YES(cuStreamGetCtx_v2(s, &seen, &of));
  CHECK(seen == c.context);
  CHECK(of == green);
  YES(cuStreamGetGreenCtx(s, &of));
  CHECK(of == green);
  YES(cuStreamGetGreenCtx(nullptr, &of));
  CHECK(of == nullptr);

  YES(cuCtxSetCurrent(converted));
  YES(cuStreamGetGreenCtx(nullptr, &of));
  CHECK(of == green);
  CUdevice device = 9;
  YES(cuCtxGetDevice(&device));
  CHECK(device == 0);
  CUdevResource own{};
  YES(cuCtxGetDevResource(converted, &own, kSm));
  CHECK(own.sm.smCount == 16);
  unsigned long long id = 0, same = 0, other = 0;
  YES(cuCtxGetId(converted, &id));
  YES(cuGreenCtxGetId(nullptr, &same));
  YES(cuCtxGetId(c.context, &other));
  CHECK(id == same);
  CHECK(id != other);
  CUdeviceptr p = 0, m = 0;
  YES(cuMemAlloc(&p, 4096));
  YES(cuMemAllocManaged(&m, 4096, CU_MEM_ATTACH_GLOBAL));
  YES(cuPointerGetAttribute(static_cast<void*>(&seen), CU_POINTER_ATTRIBUTE_CONTEXT, p));
  CHECK(seen == c.context);
  YES(cuPointerGetAttribute(static_cast<void*>(&seen), CU_POINTER_ATTRIBUTE_CONTEXT, m));
  CHECK(seen == c.context);
  CHECK(cuMemsetD8Async(p, 1, 4096, CU_STREAM_PER_THREAD) == CUDA_ERROR_INVALID_HANDLE);
  YES(cuMemsetD8Async(p, 7, 4096, nullptr));
  YES(cuStreamSynchronize(nullptr));
  CUevent of_green = nullptr, of_primary = nullptr;
  YES(cuEventCreate(&of_green, CU_EVENT_DISABLE_TIMING));
  CUstream created = nullptr;
  YES(cuStreamCreate(&created, CU_STREAM_DEFAULT));
  YES(cuStreamGetGreenCtx(created, &of));
  CHECK(of == green);
  YES(cuStreamDestroy(created));
  YES(cuCtxSetCurrent(c.context));

  // Events are the primary context's, whatever was current.
  YES(cuEventCreate(&of_primary, CU_EVENT_DISABLE_TIMING));
  CUstream plain = nullptr;
  YES(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  for (CUevent e : {of_green, of_primary}) {
    YES(cuEventRecord(e, s));
    YES(cuStreamWaitEvent(plain, e, 0));
    YES(cuEventRecord(e, plain));
    YES(cuStreamWaitEvent(s, e, 0));
  }
  CHECK(cuCtxDestroy(converted) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuDevicePrimaryCtxReset(0) == CUDA_ERROR_NOT_PERMITTED);
  YES(cuStreamDestroy(s));
  YES(cuGreenCtxDestroy(green));
  YES(cuEventRecord(of_green, plain));
  YES(cuEventSynchronize(of_green));
  uint8_t out = 0;
  YES(cuMemcpyDtoH(&out, p + 4095, 1));
  CHECK(out == 7);
  YES(cuStreamDestroy(plain));
  YES(cuEventDestroy(of_green));
  YES(cuEventDestroy(of_primary));
  YES(cuMemFree(p));
  YES(cuMemFree(m));
}

TEST_CASE("an event of another context is not recorded") {
  Context c;
  CUgreenCtx green = MakeGreen(8);
  CUstream s = GreenStream(green), plain = nullptr;
  YES(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  CUcontext second = nullptr;
  YES(cuCtxCreate(&second, nullptr, 0, 0));
  CUevent e = nullptr;
  YES(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CHECK(cuEventRecord(e, plain) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventRecord(e, s) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuGreenCtxRecordEvent(green, e) == CUDA_ERROR_INVALID_HANDLE);
  YES(cuStreamWaitEvent(plain, e, 0));
  YES(cuGreenCtxWaitEvent(green, e));
  YES(cuCtxDestroy(second));
  YES(cuCtxSetCurrent(c.context));
  YES(cuStreamDestroy(s));
  YES(cuStreamDestroy(plain));
  YES(cuGreenCtxDestroy(green));
}

TEST_CASE("a primary context waits for its green ones, and these for themselves") {
  Context c;
  CUgreenCtx first = MakeGreen(8), second = MakeGreen(8);
  CUcontext converted = nullptr;
  YES(cuCtxFromGreenCtx(&converted, first));
  CUstream a = GreenStream(first), b = GreenStream(second), plain = nullptr;
  YES(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p = 0;
  YES(cuMemAlloc(&p, 4096));
  {
    Gate gate;
    gate.Close(b);
    gate.Close(plain);
    YES(cuCtxSetCurrent(converted));
    YES(cuCtxSynchronize());
    CHECK(cuStreamQuery(b) == CUDA_ERROR_NOT_READY);
    gate.open = true;
    YES(cuCtxSetCurrent(c.context));
    YES(cuCtxSynchronize());
    CHECK(cuStreamQuery(b) == CUDA_SUCCESS);
  }
  CUevent e = nullptr;
  YES(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  for (const bool whole : {false, true}) {
    // Everything of the first green context, or of all.
    Gate gate;
    gate.Close(a);
    YES(whole ? cuCtxRecordEvent(c.context, e) : cuGreenCtxRecordEvent(first, e));
    CHECK(cuEventQuery(e) == CUDA_ERROR_NOT_READY);
    YES(whole ? cuCtxWaitEvent(c.context, e) : cuGreenCtxWaitEvent(second, e));
    YES(cuMemsetD8Async(p, 1, 16, b));
    CHECK(cuStreamQuery(b) == CUDA_ERROR_NOT_READY);
    YES(cuMemsetD8Async(p + 32, 1, 16, plain));
    if (whole) {
      CHECK(cuStreamQuery(plain) == CUDA_ERROR_NOT_READY);
    } else {
      YES(cuStreamSynchronize(plain));
    }
    CUstream later = GreenStream(second);
    YES(cuMemsetD8Async(p + 64, 1, 16, later));
    CHECK(cuStreamQuery(later) == CUDA_ERROR_NOT_READY);
    gate.open = true;
    YES(cuEventSynchronize(e));
    YES(cuCtxSynchronize());
    YES(cuStreamDestroy(later));
  }
  CHECK(cuGreenCtxRecordEvent(nullptr, e) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuGreenCtxRecordEvent(first, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  YES(cuEventDestroy(e));
  for (CUstream s : {a, b, plain}) YES(cuStreamDestroy(s));
  YES(cuGreenCtxDestroy(first));
  YES(cuGreenCtxDestroy(second));
  YES(cuMemFree(p));
}

TEST_CASE("the end of a green context waits for nothing") {
  Context c;
  CUgreenCtx green = MakeGreen(8);
  CUcontext converted = nullptr;
  YES(cuCtxFromGreenCtx(&converted, green));
  CUstream destroyed = GreenStream(green), left = GreenStream(green);
  CUdeviceptr p = 0;
  YES(cuMemAlloc(&p, 4096));
  YES(cuMemsetD8(p, 0, 4096));
  CUevent e = nullptr;
  YES(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  Gate gate;
  gate.Close(destroyed);
  YES(cuMemsetD8Async(p, 5, 4096, destroyed));
  YES(cuEventRecord(e, destroyed));
  YES(cuStreamDestroy(destroyed));
  YES(cuGreenCtxDestroy(green));
  CHECK(cuEventQuery(e) == CUDA_ERROR_NOT_READY);
  gate.open = true;
  YES(cuEventSynchronize(e));
  uint8_t out = 0;
  YES(cuMemcpyDtoH(&out, p + 4095, 1));
  CHECK(out == 5);
  CHECK(cuMemsetD8Async(p, 6, 4096, left) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamQuery(left) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuEventRecord(e, left) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamDestroy(left) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUdevResource own{};
  CHECK(cuGreenCtxDestroy(green) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuGreenCtxGetDevResource(green, &own, kSm) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuCtxFromGreenCtx(&converted, green) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  // It stays current.
  CUgreenCtx last = MakeGreen(8);
  YES(cuCtxFromGreenCtx(&converted, last));
  YES(cuCtxSetCurrent(converted));
  YES(cuGreenCtxDestroy(last));
  CUcontext current = nullptr;
  YES(cuCtxGetCurrent(&current));
  CHECK(current == converted);
  CUdeviceptr q = 0;
  CHECK(cuMemAlloc(&q, 4096) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  YES(cuCtxSetCurrent(c.context));
  YES(cuEventDestroy(e));
  YES(cuMemFree(p));
}

TEST_CASE("a green context keeps the primary one") {
  CUgreenCtx green = nullptr;
  CUstream s = nullptr;
  unsigned flags = 0;
  int active = 0;
  {
    Context c;
    green = MakeGreen(8);
    s = GreenStream(green);
  }
  YES(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(active == 1);
  CHECK(cuStreamQuery(s) == CUDA_SUCCESS);
  YES(cuStreamDestroy(s));
  YES(cuGreenCtxDestroy(green));
  YES(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK(active == 0);
}

TEST_CASE("a capture spans a green context and its primary one") {
  Context c;
  CUgreenCtx green = MakeGreen(8);
  CUstream s = GreenStream(green), plain = nullptr;
  YES(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  CUevent e = nullptr;
  YES(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr p = 0;
  YES(cuMemAlloc(&p, 4096));
  CUgraph graph = nullptr;
  // One capture may span both contexts, and events of the green one do not concern a capture of the primary one.
  YES(cuStreamBeginCapture(plain, CU_STREAM_CAPTURE_MODE_RELAXED));
  YES(cuGreenCtxRecordEvent(green, e));
  YES(cuEventRecord(e, plain));
  YES(cuStreamWaitEvent(s, e, 0));
  YES(cuMemsetD8Async(p, 1, 16, s));
  YES(cuEventRecord(e, s));
  YES(cuStreamWaitEvent(plain, e, 0));
  YES(cuStreamEndCapture(plain, &graph));
  YES(cuGraphDestroy(graph));
  YES(cuEventDestroy(e));
  YES(cuMemFree(p));
  YES(cuStreamDestroy(s));
  YES(cuStreamDestroy(plain));
  YES(cuGreenCtxDestroy(green));
}
