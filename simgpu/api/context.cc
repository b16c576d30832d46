// Contexts, primary and created: owners of streams and events.
#include <algorithm>
#include <vector>

#include "call.h"
#include "image.h"

using simgpu::Sim;
using simgpu::TheDriver;
using simgpu::ThisState;

namespace simgpu {

void ActivatePrimary(CUcontext c) {
  if (c->active) return;
  c->active = true;
  c->legacy = NewStreamHandle(c, 0, 0, true);
}

CUstream NewStreamHandle(CUcontext c, unsigned flags, int priority, bool legacy) {
  auto* s = new CUstream_st;
  s->context = c;
  s->flags = flags;
  s->priority = priority;
  s->id = TheDriver().next_id++;
  s->sim = Sim().NewStream(c->card, c, (flags & CU_STREAM_NON_BLOCKING) == 0, legacy);
  c->streams.insert(s);
  s->sim->gates = c->barriers;
  return s;
}

std::vector<CUcontext> WithGreenContexts(CUcontext c) {
  std::vector<CUcontext> all(c->greens.begin(), c->greens.end());
  all.push_back(c);
  return all;
}

void WaitFor(Call& call, CUcontext c, const char* what) {
  for (CUcontext each : WithGreenContexts(c)) {
    Sim().WaitContext(call.lock, each, each->card, what);
    // What cuCtxWaitEvent waits for, too (an H100).
    for (const FencePtr& barrier : std::vector<FencePtr>(each->barriers)) Sim().WaitFence(call.lock, barrier, what);
  }
}

std::vector<CUcontext> OtherContextsOf(CUcontext queued_in, uint64_t to, uint64_t from) {
  const auto context_of = [](uint64_t p) {
    const Allocation* const a = Sim().memory().Find(p);
    const bool has_none = a == nullptr || a->kind == MemoryKind::kMapped || PoolOf(*a) != nullptr;
    return has_none ? nullptr : static_cast<CUcontext>(a->owner);
  };
  const CUcontext source = context_of(from), destination = context_of(to);
  if (source == nullptr) return {};
  std::vector<CUcontext> others;
  if (source != queued_in) others.push_back(source);
  const Allocation* const target = Sim().memory().Find(to);
  const bool is_apart = destination != nullptr && target->kind != MemoryKind::kManaged &&
                        source->card != destination->card && source->peers.count(destination) == 0;
  if (is_apart && destination != queued_in) others.push_back(destination);
  return others;
}

void DestroyContext(Call& call, CUcontext c) {
  Sim().WaitContext(call.lock, c, c->card, "the end of a context");
  {
    // All objects of the context end with it.
    while (!c->memory.empty()) FreeNow(c->memory.begin()->first);
    while (!c->arrays.empty()) FreeArray(*c->arrays.begin());
  }
  EndModules(c);
  for (const uint64_t address : c->registered) TheDriver().host_memory.erase(address);  // H100, driver 580
  c->registered.clear();
  for (CUstream s : c->streams) {
    s->magic = kDead;
    Sim().DeleteStream(s->sim);
  }
  c->streams.clear();
  for (CUevent e : c->events) e->magic = kDead;
  c->events.clear();
  c->peers.clear();
  c->peer_copies.clear();
  for (CUcontext other : TheDriver().contexts) other->peers.erase(c);
  c->legacy = nullptr;
  EndGathering(c);
  c->active = false;
}

// The first context of a process on a card uses memory that no limit counts.
bool ChargeContext(int card) {
  static bool charged[kMaxCards] = {};
  if (charged[card]) return true;
  if (!Sim().TakeUnmanaged(card, static_cast<uint64_t>(Sim().profile().context_bytes))) return false;
  return charged[card] = true;
}

void EndGathering(CUcontext c) {
  if (c->gathering != nullptr) Sim().DeleteStream(c->gathering);
  c->gathering = nullptr;
  c->barriers.clear();
  Sim().ForgetContext(c, c->card);
}

}  // namespace simgpu

namespace {

// Handles are reused, as the driver's are.
std::vector<CUcontext>& Gone() {
  static auto& gone = *new std::vector<CUcontext>;
  return gone;
}

CUresult Create(CUcontext* out, unsigned flags, CUdevice dev, unsigned version, simgpu::Call& call) {
  (void)call;
  NEED_ARG(out != nullptr);
  NEED_CARD(dev);
  NEED(simgpu::ChargeContext(card), CUDA_ERROR_OUT_OF_MEMORY);
  CUcontext c = nullptr;
  if (Gone().empty()) {
    c = new CUctx_st;
  } else {
    c = Gone().back();
    Gone().pop_back();
    *c = {};
  }
  c->card = card;
  c->flags = flags;
  c->active = true;
  c->api_version = version;
  c->id = TheDriver().next_id++;
  TheDriver().contexts.insert(c);
  c->legacy = simgpu::NewStreamHandle(c, 0, 0, true);
  ThisState().contexts.push_back(c);
  *out = c;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice dev) {
  BEGIN(500);
  NEED_ARG(out != nullptr);
  NEED_CARD(dev);
  NEED(simgpu::ChargeContext(card), CUDA_ERROR_OUT_OF_MEMORY);
  CUcontext c = TheDriver().primary[static_cast<size_t>(card)];
  ++c->retained;
  simgpu::ActivatePrimary(c);
  *out = c;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  BEGIN_ALWAYS(500);
  NEED_CARD(dev);
  CUcontext c = TheDriver().primary[static_cast<size_t>(card)];
  NEED(c->retained > 0, CUDA_ERROR_INVALID_CONTEXT);
  if (--c->retained == 0 && c->greens.empty()) simgpu::DestroyContext(call, c);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  BEGIN(500);
  NEED_CARD(dev);
  CUcontext c = TheDriver().primary[static_cast<size_t>(card)];
  NEED(c->greens.empty(), CUDA_ERROR_NOT_PERMITTED);  // as seen with driver 580
  const bool held = c->retained > 0;
  if (c->active) simgpu::DestroyContext(call, c);
  if (held) simgpu::ActivatePrimary(c);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  BEGIN(100);
  NEED_CARD(dev);
  TheDriver().primary[static_cast<size_t>(card)]->flags = flags;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  BEGIN_ALWAYS(100);
  NEED_ARG(flags != nullptr && active != nullptr);
  NEED_CARD(dev);
  *flags = TheDriver().primary[static_cast<size_t>(card)]->flags;
  *active = TheDriver().primary[static_cast<size_t>(card)]->active;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* out, unsigned int flags, CUdevice dev) {
  BEGIN(100000);
  return Create(out, flags, dev, 3020, call);
}
CUresult cuCtxCreate(CUcontext* out, unsigned int flags, CUdevice dev) { return cuCtxCreate_v2(out, flags, dev); }
CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int, unsigned int flags, CUdevice dev) {
  BEGIN(100000);
  return Create(out, flags, dev, 11040, call);
}
CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams*, unsigned int flags, CUdevice dev) {
  BEGIN(100000);
  return Create(out, flags, dev, 12050, call);
}

CUresult cuCtxDestroy_v2(CUcontext c) {
  BEGIN_ALWAYS(50000);
  NEED(simgpu::ValidContext(c) && !c->primary && c->parent == nullptr, CUDA_ERROR_INVALID_CONTEXT);
  simgpu::DestroyContext(call, c);
  TheDriver().contexts.erase(c);
  c->magic = kDead;
  Gone().push_back(c);
  auto& stack = ThisState().contexts;
  if (!stack.empty() && stack.back() == c) stack.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext c) { return cuCtxDestroy_v2(c); }

CUresult cuCtxPushCurrent_v2(CUcontext c) {
  BEGIN_ALWAYS(50);
  NEED(simgpu::ValidContext(c), CUDA_ERROR_INVALID_CONTEXT);
  ThisState().contexts.push_back(c);
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext c) { return cuCtxPushCurrent_v2(c); }

CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  BEGIN_ALWAYS(50);
  auto& stack = ThisState().contexts;
  NEED(!stack.empty(), CUDA_ERROR_INVALID_CONTEXT);
  if (out != nullptr) *out = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* out) { return cuCtxPopCurrent_v2(out); }

CUresult cuCtxSetCurrent(CUcontext c) {
  BEGIN_ALWAYS(50);
  // An ended green context becomes current, and calls fail in it: as seen with driver 580.
  NEED(c == nullptr || simgpu::ValidContext(c) || simgpu::EndedGreen(c), CUDA_ERROR_INVALID_CONTEXT);
  auto& stack = ThisState().contexts;
  if (!stack.empty()) stack.pop_back();
  if (c != nullptr) stack.push_back(c);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* out) {
  BEGIN_ALWAYS(20);
  NEED_ARG(out != nullptr);
  *out = ThisState().contexts.empty() ? nullptr : ThisState().contexts.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* dev) {
  BEGIN_ALWAYS(20);
  NEED_ARG(dev != nullptr);
  NEED_CONTEXT();
  *dev = simgpu::DeviceOf(context->card);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* dev, CUcontext c) {
  BEGIN(20);
  NEED_ARG(dev != nullptr);
  if (c == nullptr) c = simgpu::CurrentContext();
  NEED(c != nullptr && simgpu::ValidContext(c), CUDA_ERROR_INVALID_CONTEXT);
  *dev = simgpu::DeviceOf(c->card);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  BEGIN(20);
  NEED_ARG(flags != nullptr);
  NEED_CONTEXT();
  *flags = simgpu::OwnerOf(context)->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  BEGIN(20);
  NEED_CONTEXT();
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext c, unsigned long long* id) {
  BEGIN(20);
  NEED_ARG(id != nullptr);
  if (c == nullptr) c = simgpu::CurrentContext();
  NEED(c != nullptr && simgpu::ValidContext(c), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  *id = c->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext c, unsigned int* version) {
  BEGIN(20);
  NEED_ARG(version != nullptr);
  if (c == nullptr) c = simgpu::CurrentContext();
  NEED(c != nullptr && simgpu::ValidContext(c), CUDA_ERROR_INVALID_CONTEXT);
  *version = c->api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  BEGIN_UNSAFE(Sim().profile().call_host_ns);
  NEED_CONTEXT();
  NEED(!simgpu::AnyCaptures(simgpu::WithGreenContexts(context), call), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Sim().CatchUp(call.lock);
  simgpu::WaitFor(call, context, "a context (cuCtxSynchronize)");
  return TheDriver().sticky;
}

CUresult cuCtxSynchronize_v2(CUcontext c) {
  BEGIN_UNSAFE(Sim().profile().call_host_ns);
  if (c == nullptr) c = simgpu::CurrentContext();
  NEED(c != nullptr && simgpu::ValidContext(c), CUDA_ERROR_INVALID_CONTEXT);
  NEED(!simgpu::AnyCaptures(simgpu::WithGreenContexts(c), call), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Sim().CatchUp(call.lock);
  simgpu::WaitFor(call, c, "a context (cuCtxSynchronize)");
  return TheDriver().sticky;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  BEGIN(20);
  NEED_CONTEXT();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  BEGIN(20);
  NEED_CONTEXT();
  NEED(limit >= 0 && limit < CU_LIMIT_MAX, CUDA_ERROR_UNSUPPORTED_LIMIT);
  context->limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  BEGIN(20);
  NEED_CONTEXT();
  NEED_ARG(value != nullptr);
  NEED(limit >= 0 && limit < CU_LIMIT_MAX, CUDA_ERROR_UNSUPPORTED_LIMIT);
  *value = context->limits[limit];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  BEGIN(20);
  NEED_ARG(config != nullptr);
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  BEGIN(20);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  BEGIN(20);
  NEED_ARG(config != nullptr);
  *config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetSharedMemConfig(CUsharedconfig) {
  BEGIN(20);
  return CUDA_SUCCESS;
}
CUresult cuCtxResetPersistingL2Cache(void) {
  BEGIN(20);
  return CUDA_SUCCESS;
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int) {
  BEGIN(1000);
  NEED_CONTEXT();
  NEED(simgpu::ValidContext(peer) && peer->card != context->card, CUDA_ERROR_INVALID_CONTEXT);
  NEED(simgpu::OwnerOf(context)->peers.insert(simgpu::OwnerOf(peer)).second, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  return CUDA_SUCCESS;
}
CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  BEGIN(1000);
  NEED_CONTEXT();
  NEED(simgpu::ValidContext(peer), CUDA_ERROR_INVALID_CONTEXT);
  NEED(simgpu::OwnerOf(context)->peers.erase(simgpu::OwnerOf(peer)) != 0, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  return CUDA_SUCCESS;
}

}  // extern "C"
