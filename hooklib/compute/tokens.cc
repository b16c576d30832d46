#include "hooklib/compute/tokens.h"

#include <cstring>
#include <ctime>

#include "hooklib/client/agent_client.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device.h"

namespace sluice {
namespace {

struct Stamp {
  CUevent event;
  CUcontext context;
};

}  // namespace

void* EventStamps::Record(void* stream, void* again) {
  const auto* s = static_cast<const Stream*>(stream);
  auto* stamp = static_cast<Stamp*>(again);
  RelaxedCapture relaxed;
  if (!s->context) return nullptr;
  const ContextScope scope(s->context->handle);
  if (!scope.is_current()) return nullptr;
  if (!stamp) {
    const CUcontext context = s->context->handle;
    MutexLock lock(mutex_);
    std::vector<void*>& free = free_[context];
    if (!free.empty()) {
      stamp = static_cast<Stamp*>(free.back());
      free.pop_back();
    } else {
      CUevent event = nullptr;
      if (g_real.cuEventCreate(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return nullptr;
      stamp = new Stamp{event, context};
    }
  }
  if (g_real.cuEventRecord(stamp->event, s->handle) == CUDA_SUCCESS) return stamp;
  // Never kept: where the driver refuses an event once, it would refuse it each time.
  g_real.cuEventDestroy_v2(stamp->event);
  delete stamp;
  return nullptr;
}

bool EventStamps::Reached(void* stamp) {
  RelaxedCapture relaxed;
  return g_real.cuEventQuery(static_cast<Stamp*>(stamp)->event) != CUDA_ERROR_NOT_READY;
}

bool EventStamps::Elapsed(void* from, void* to, int64_t* ns) {
  RelaxedCapture relaxed;
  const auto elapsed = g_real.cuEventElapsedTime_v2 ? g_real.cuEventElapsedTime_v2 : g_real.cuEventElapsedTime;
  float ms = 0;
  if (elapsed(&ms, static_cast<Stamp*>(from)->event, static_cast<Stamp*>(to)->event) != CUDA_SUCCESS) return false;
  *ns = static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  return true;
}

void EventStamps::Free(void* stamp) {
  MutexLock lock(mutex_);
  free_[static_cast<Stamp*>(stamp)->context].push_back(stamp);
}

bool EventStamps::BelongsTo(void* stamp, const void* context) { return static_cast<Stamp*>(stamp)->context == context; }

void EventStamps::Drop(CUcontext context) {
  MutexLock lock(mutex_);
  const auto it = free_.find(context);
  if (it == free_.end()) return;
  for (void* stamp : it->second) delete static_cast<Stamp*>(stamp);
  free_.erase(it);
}

uint64_t EventStamps::Now() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000000000 + static_cast<uint64_t>(ts.tv_nsec);
}

void EventStamps::Sleep(uint64_t ns) {
  const timespec pause{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  nanosleep(&pause, nullptr);
}

sluice_token Tokens::Token() const {
  sluice_token token{};
  std::strncpy(token.uuid, uuid_->c_str(), sizeof token.uuid - 1);
  return token;
}

bool Tokens::Request(uint64_t burst_ns) {
  if (!client_) return false;
  sluice_token token = Token();
  token.burst_ns = burst_ns;
  return client_->SendTokenRequest(token);
}

void Tokens::Release(uint64_t id, uint64_t used_ns, uint64_t burst_ns, bool estimated) {
  if (!client_) return;
  sluice_token token = Token();
  token.id = id;
  token.used_ns = used_ns;
  token.burst_ns = burst_ns;
  token.estimated = estimated;
  client_->SendTokenRelease(token);
}

void Tokens::DropContext(CUcontext context) {
  time_slices_.DropStamps(context);
  stamps_.Drop(context);
}

}  // namespace sluice
