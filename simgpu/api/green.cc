// Green contexts: parts of a card's multiprocessors with streams of their own. As driver 580 does on an H100, unless a
// comment says otherwise.
#include <algorithm>
#include <cstring>

#include "call.h"

using simgpu::Sim;
using simgpu::TheDriver;

// Never destroyed: the driver has no call for that either. Equal descriptors share one object.
struct CUdevResourceDesc_st {
  int card = 0;
  SimMultiprocessors multiprocessors;
};

namespace simgpu {

bool AnyCaptures(const std::vector<CUcontext>& contexts, Call& call) {
  CUstream broken = nullptr;
  for (CUcontext c : contexts) {
    for (CUstream s : c->streams) {
      if (!Capturing(s)) continue;
      s->capture->invalidated = true;
      broken = s;
    }
  }
  if (broken != nullptr) CaptureMisuse(call, broken, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return broken != nullptr;
}

CUresult RecordContexts(Call& call, const std::vector<CUcontext>& contexts, CUevent e) {
  NEED(ValidEvent(e) && e->context == OwnerOf(contexts.back()), CUDA_ERROR_INVALID_HANDLE);
  NEED(!AnyCaptures(contexts, call), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUcontext first = contexts.back();
  if (first->gathering == nullptr) first->gathering = Sim().NewStream(first->card, first, false, false);
  for (CUcontext c : contexts) {
    for (CUstream s : c->streams) {
      if (s->sim->Busy()) Sim().SubmitWait(call.lock, first->gathering, Sim().SubmitFence(call.lock, s->sim));
    }
    for (const FencePtr& barrier : c->barriers) Sim().SubmitWait(call.lock, first->gathering, barrier);
  }
  e->capture.reset();
  e->fence = Sim().SubmitFence(call.lock, first->gathering);
  return CUDA_SUCCESS;
}

CUresult WaitInContexts(Call& call, const std::vector<CUcontext>& contexts, CUevent e) {
  NEED(ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  if (e->capture != nullptr) {
    e->capture->invalidated = true;
    return CaptureMisuse(call, e->capture->origin, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  NEED(!AnyCaptures(contexts, call), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (e->fence == nullptr) return CUDA_SUCCESS;
  for (CUcontext c : contexts) {
    for (CUstream s : c->streams) s->sim->gates.push_back(e->fence);
    std::erase_if(c->barriers, [](const FencePtr& barrier) { return barrier->done; });
    c->barriers.push_back(e->fence);
  }
  return CUDA_SUCCESS;
}

}  // namespace simgpu

namespace {

// The private part of a CUdevResource.
struct Hidden {
  int card;
  int may_be_split;
  uint64_t words[kMaxMultiprocessors / 64];
};
static_assert(sizeof(Hidden) <= sizeof(CUdevResource::_internal_padding));

SimMultiprocessors WholeCard() {
  SimMultiprocessors all;
  const auto count = static_cast<size_t>(std::clamp<int64_t>(Sim().profile().multiprocessors, 1, kMaxMultiprocessors));
  for (size_t i = 0; i < count; ++i) all.set(i);
  return all;
}

// Hopper and later: parts have at least 8 multiprocessors, and a multiple of 8.
constexpr unsigned kAlignment = 8, kFineAlignment = 2;

void Describe(CUdevResource* out, int card, const SimMultiprocessors& part, bool may_be_split) {
  *out = {};
  out->type = CU_DEV_RESOURCE_TYPE_SM;
  out->sm.smCount = static_cast<unsigned>(part.count());
  if (may_be_split) out->sm.minSmPartitionSize = out->sm.smCoscheduledAlignment = kAlignment;
  Hidden hidden{card, may_be_split, {}};
  for (size_t i = 0; i < kMaxMultiprocessors; ++i) {
    if (part.test(i)) hidden.words[i / 64] |= 1ull << (i % 64);
  }
  std::memcpy(out->_internal_padding, &hidden, sizeof hidden);
}

Hidden HiddenIn(const CUdevResource& resource) {
  Hidden hidden;
  std::memcpy(&hidden, resource._internal_padding, sizeof hidden);
  return hidden;
}

SimMultiprocessors PartOf(const Hidden& hidden) {
  SimMultiprocessors part;
  for (size_t i = 0; i < kMaxMultiprocessors; ++i) part[i] = (hidden.words[i / 64] >> (i % 64)) & 1;
  return part;
}

// Takes `count` multiprocessors out of `*left`.
SimMultiprocessors Take(SimMultiprocessors* left, unsigned count) {
  SimMultiprocessors part;
  for (size_t i = 0; i < kMaxMultiprocessors && count != 0; ++i) {
    if (!left->test(i)) continue;
    left->reset(i);
    part.set(i);
    --count;
  }
  return part;
}

CUresult ValidGreen(CUgreenCtx green, CUcontext* out) {
  auto* const c = reinterpret_cast<CUcontext>(green);
  NEED(!simgpu::EndedGreen(c), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  NEED(TheDriver().contexts.count(c) != 0 && c->parent != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  *out = c;
  return CUDA_SUCCESS;
}

#define NEED_GREEN(handle)     \
  CUcontext context = nullptr; \
  if (const CUresult wrong = ValidGreen((handle), &context); wrong != CUDA_SUCCESS) return wrong

CUresult GetResource(int card, const SimMultiprocessors& part, CUdevResource* out, CUdevResourceType type) {
  NEED_ARG(out != nullptr);
  NEED(type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  Describe(out, card, part, true);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource* out, CUdevResourceType type) {
  BEGIN(200);
  NEED_ARG(out != nullptr);
  NEED_CARD(dev);
  return GetResource(card, WholeCard(), out, type);
}

CUresult cuCtxGetDevResource(CUcontext c, CUdevResource* out, CUdevResourceType type) {
  BEGIN(200);
  NEED(simgpu::ValidContext(c), CUDA_ERROR_INVALID_CONTEXT);
  return GetResource(c->card, c->parent != nullptr ? c->multiprocessors : WholeCard(), out, type);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* out, CUdevResourceType type) {
  BEGIN(200);
  NEED_GREEN(green);
  return GetResource(context->card, context->multiprocessors, out, type);
}

// The driver gives fewer parts where a card's clusters are uneven (15 of 8 from an H100's 132); this one gives as many
// as fit.
CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned int* count, const CUdevResource* input,
                                     CUdevResource* remaining, unsigned int flags, unsigned int least) {
  BEGIN(500);
  NEED_ARG(count != nullptr && input != nullptr && (parts == nullptr || *count != 0));
  NEED(input->type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  const Hidden hidden = HiddenIn(*input);
  SimMultiprocessors left = PartOf(hidden);
  const auto total = static_cast<unsigned>(left.count());
  // A part is not split again before a green context has it.
  NEED(hidden.may_be_split && least <= total, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  const unsigned step = (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0 ? kFineAlignment : kAlignment;
  const unsigned size = std::min(total, std::max(step, (least + step - 1) / step * step));
  const unsigned most = total / size;
  *count = parts == nullptr ? most : std::min(*count, most);
  if (parts == nullptr) return CUDA_SUCCESS;
  for (unsigned i = 0; i < *count; ++i) Describe(&parts[i], hidden.card, Take(&left, size), false);
  if (remaining == nullptr) return CUDA_SUCCESS;
  *remaining = {};
  if (left.any()) Describe(remaining, hidden.card, left, false);
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* out, CUdevResource* resources, unsigned int count) {
  BEGIN(500);
  NEED_ARG(out != nullptr && resources != nullptr && count != 0);
  CUdevResourceDesc_st wanted;
  for (unsigned i = 0; i < count; ++i) {
    NEED(resources[i].type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
    const Hidden hidden = HiddenIn(resources[i]);
    NEED(i == 0 || hidden.card == wanted.card, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    wanted.card = hidden.card;
    wanted.multiprocessors |= PartOf(hidden);
  }
  static auto& known = *new std::vector<CUdevResourceDesc>;
  for (CUdevResourceDesc d : known) {
    if (d->card != wanted.card || d->multiprocessors != wanted.multiprocessors) continue;
    *out = d;
    return CUDA_SUCCESS;
  }
  known.push_back(new CUdevResourceDesc_st(wanted));
  *out = known.back();
  return CUDA_SUCCESS;
}

// Without a descriptor: the whole card.
CUresult cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc description, CUdevice dev, unsigned int flags) {
  BEGIN(100000);
  NEED_ARG(out != nullptr && flags == CU_GREEN_CTX_DEFAULT_STREAM);
  NEED_CARD(dev);
  NEED_ARG(description == nullptr || description->card == card);
  NEED(simgpu::ChargeContext(card), CUDA_ERROR_OUT_OF_MEMORY);
  CUcontext primary = TheDriver().primary[static_cast<size_t>(card)];
  simgpu::ActivatePrimary(primary);
  // It waits for queued work, and other threads' calls wait for it meanwhile (H200, driver 580).
  TheDriver().holder = &simgpu::ThisState();
  Sim().WaitContext(call.lock, nullptr, card, "a device (cuGreenCtxCreate)");
  TheDriver().holder = nullptr;
  auto* c = new CUctx_st;
  c->card = card;
  c->active = true;
  c->id = TheDriver().next_id++;
  c->parent = primary;
  c->multiprocessors = description != nullptr ? description->multiprocessors : WholeCard();
  primary->greens.insert(c);
  TheDriver().contexts.insert(c);
  // Its default stream is ordered with no other stream.
  c->legacy = simgpu::NewStreamHandle(c, CU_STREAM_NON_BLOCKING, 0, false);
  *out = reinterpret_cast<CUgreenCtx>(c);
  return CUDA_SUCCESS;
}

// Waits for nothing: queued work goes on, and events outlive the context.
CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  BEGIN(50000);
  NEED_GREEN(green);
  for (CUstream s : context->streams) {
    if (simgpu::Capturing(s)) {
      s->capture->invalidated = true;
      s->capture->joined.erase(s);
      s->capture.reset();
    }
    s->magic = s == context->legacy ? kDead : kOrphanMagic;
    Sim().DeleteStream(s->sim);
  }
  simgpu::EndGathering(context);
  CUcontext primary = context->parent;
  primary->greens.erase(context);
  TheDriver().contexts.erase(context);
  auto& ended = TheDriver().ended_greens;
  ended.push_back(context);
  if (ended.size() > 1024) {
    delete ended.front();
    ended.pop_front();
  }
  if (primary->retained == 0 && primary->greens.empty()) simgpu::DestroyContext(call, primary);
  return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx green) {
  BEGIN(100);
  NEED_ARG(out != nullptr);
  NEED_GREEN(green);
  context->converted = true;
  *out = context;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long* id) {
  BEGIN(50);
  NEED_ARG(id != nullptr);
  if (green == nullptr) {
    CUcontext current = simgpu::CurrentContext();
    NEED(current != nullptr && current->parent != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    *id = current->id;
    return CUDA_SUCCESS;
  }
  NEED_GREEN(green);
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx green, unsigned int flags, int priority) {
  BEGIN(5000);
  NEED_ARG(out != nullptr && flags == CU_STREAM_NON_BLOCKING);
  NEED_GREEN(green);
  *out = simgpu::NewStreamHandle(context, flags, std::clamp(priority, -5, 0), false);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream s, CUgreenCtx* out) {
  BEGIN(50);
  NEED_ARG(out != nullptr);
  constexpr bool kPerThread = false;
  NEED_STREAM(s);
  *out = stream->context->parent != nullptr ? reinterpret_cast<CUgreenCtx>(stream->context) : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent e) {
  BEGIN(Sim().profile().event_host_ns);
  NEED_GREEN(green);
  return simgpu::RecordContexts(call, {context}, e);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent e) {
  BEGIN(Sim().profile().event_host_ns);
  NEED_GREEN(green);
  return simgpu::WaitInContexts(call, {context}, e);
}

// A primary context's green contexts take part.
CUresult cuCtxRecordEvent(CUcontext c, CUevent e) {
  BEGIN(Sim().profile().event_host_ns);
  NEED(simgpu::ValidContext(c), CUDA_ERROR_INVALID_CONTEXT);
  return simgpu::RecordContexts(call, simgpu::WithGreenContexts(c), e);
}

CUresult cuCtxWaitEvent(CUcontext c, CUevent e) {
  BEGIN(Sim().profile().event_host_ns);
  NEED(simgpu::ValidContext(c), CUDA_ERROR_INVALID_CONTEXT);
  return simgpu::WaitInContexts(call, simgpu::WithGreenContexts(c), e);
}

}  // extern "C"
