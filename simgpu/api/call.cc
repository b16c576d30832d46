#include "call.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "../core/misuse.h"
#include "../core/pace.h"

namespace simgpu {

ThreadState& ThisState() {
  // Never destroyed: static and thread-local destructors of the application may call the driver.
  static thread_local auto* const state = new ThreadState;
  return *state;
}

Driver& TheDriver() {
  static auto* driver = [] {
    auto* d = new Driver;
    // A child of a process that used CUDA cannot use it, as with the real driver.
    pthread_atfork(nullptr, nullptr, [] { TheDriver().forked = TheDriver().initialised; });
    return d;
  }();
  return *driver;
}

void TraceCall(const char* what, const char* detail) {
  static const bool on = std::getenv("SIMGPU_TRACE_CALLS") != nullptr;
  if (on) std::fprintf(stderr, "simgpu: %s %s\n", what, detail);
}

namespace {

struct {
  void (*callback)(const char* call, void* data) = nullptr;
  void* data = nullptr;
} g_tool;

// A profiler's callback.
void Report(const Call& call) {
  static thread_local bool inside = false;
  if (g_tool.callback == nullptr || inside) return;
  inside = true;
  g_tool.callback(call.Name().c_str(), g_tool.data);
  inside = false;
}

}  // namespace

Call::Call(int64_t host_ns, const char* call_name, CallKind kind) : name(call_name) {
  TraceCall(call_name, "");
  Report(*this);
  HostThread& thread = ThisThread();
  Driver& d = TheDriver();
  if (d.forked) {
    error = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  if (kind != kNeedsNoInit && !d.initialised) {
    error = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  if (thread.in_callback && kind != kNeedsNoInit) {
    error = CUDA_ERROR_NOT_PERMITTED;
    return;
  }
  Simulator& sim = Sim();
  if (Paced()) {
    const int64_t now = PacedNow();
    if (thread.now > now + 500'000) PacedSleep(thread.now - now);  // as long as its calls take
    thread.now = std::max(thread.now, now);
  }
  lock = Simulator::Lock(sim.mutex);
  while (d.holder != nullptr && d.holder != &ThisState()) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    lock.lock();
  }
  if (d.forked) {  // the process ended while this thread waited
    lock.unlock();
    error = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  thread.now += host_ns;
  // Due operations are processed in batches, which cost less than a check in each call.
  if ((++thread.calls & 63) == 0) sim.CatchUp(lock);
  if (d.sticky != CUDA_SUCCESS && kind != kNeedsNoInit && kind != kAlways) {
    error = d.sticky;
    return;
  }
  if (kind == kUnsafeInCapture && !d.captures.empty()) error = RefuseInCapture(*this);
}

namespace {
int64_t g_latest = 0;  // written with the simulator's lock
}  // namespace

Call::~Call() {
  if (lock.owns_lock()) g_latest = std::max(g_latest, ThisThread().now);
}
int64_t SeenTime() { return std::max(ThisThread().now, g_latest); }

extern "C" void simgpu_on_call(void (*callback)(const char* call, void* data), void* data) {
  g_tool = {callback, data};
}

std::string Call::Name() const {
  std::string text = name;
  if (text.size() > 4 && text.compare(text.size() - 4, 4, "Impl") == 0) text.resize(text.size() - 4);
  return text;
}

CUcontext CurrentContext() {
  auto& stack = ThisState().contexts;
  if (stack.empty() || stack.back() == nullptr || !ValidContext(stack.back())) return nullptr;
  return stack.back();
}

bool ValidContext(CUcontext c) {
  return TheDriver().contexts.count(c) != 0 && (!c->primary || c->active) && (c->parent == nullptr || c->converted);
}

bool EndedGreen(CUcontext c) {
  const auto& ended = TheDriver().ended_greens;
  return std::find(ended.begin(), ended.end(), c) != ended.end();
}

CUresult NoContext() {
  const auto& stack = ThisState().contexts;
  return !stack.empty() && EndedGreen(stack.back()) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

bool ValidEvent(CUevent e) { return e != nullptr && e->magic == kEventMagic; }

CUresult ResolveStream(CUstream handle, bool per_thread, CUstream* out) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    const bool own = handle == CU_STREAM_PER_THREAD || (handle == nullptr && per_thread);
    const CUcontext c = CurrentContext();
    if (c == nullptr) return NoContext();
    if (!own) {
      *out = c->legacy;
      return CUDA_SUCCESS;
    }
    if (c->parent != nullptr) return CUDA_ERROR_INVALID_HANDLE;  // green contexts have no per-thread streams
    CUstream& mine = ThisState().per_thread[c];
    if (mine == nullptr || mine->magic != kStreamMagic || mine->context != c) mine = NewStreamHandle(c, 0, 0, false);
    *out = mine;
    return CUDA_SUCCESS;
  }
  if (handle->magic == kOrphanMagic) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (handle->magic != kStreamMagic) return CUDA_ERROR_INVALID_HANDLE;
  *out = handle;
  return CUDA_SUCCESS;
}

CUresult Dispatch(Call& call, CUstream s, Op* op, CUgraphNodeType type, CUgraphNode* node_out) {
  if (Capturing(s)) {
    if (s->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUgraphNode node = AddNode(s->capture->graph, type, s->tail.data(), s->tail.size());
    node->op.reset(op);
    s->tail = {node};
    if (node_out != nullptr) *node_out = node;
    return CUDA_SUCCESS;
  }
  if (const CUresult refused = RefuseImplicit(call, s); refused != CUDA_SUCCESS) return refused;
  Sim().Submit(call.lock, s->sim, op);
  return CUDA_SUCCESS;
}

}  // namespace simgpu
