#include "hooklib/engine/device/peer_copies.h"

#include <ctime>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"

namespace sluice::peer_copies {

namespace {

// Leaves the list with g_mutex held, while its owner is alive.
struct Copy {
  Copy(CUcontext of, CUcontext in, const Stream* by, uint64_t covers)
      : context(of), owner(in), stream(by), seq(covers) {}
  Copy(const Copy&) = delete;
  ~Copy() { End(); }
  void End() {
    if (event) g_real.cuEventDestroy_v2(std::exchange(event, nullptr));
    is_done = true;
  }

  const CUcontext context, owner;
  const Stream* const stream;  // compared, never followed
  const uint64_t seq;          // it covers the stream's work so far
  // Guarded by g_mutex.
  CUevent event = nullptr;
  int waiters = 0;  // threads in the driver's wait for the event
  bool is_done = false;
};
using Copies = std::vector<std::shared_ptr<Copy>>;

Mutex g_mutex;  // guards the two; a leaf
Copies& All() SLUICE_REQUIRES(g_mutex) {
  static auto& all = *new Copies;
  return all;
}
std::set<std::pair<CUcontext, CUcontext>>& Accesses() SLUICE_REQUIRES(g_mutex) {
  static auto& all = *new std::set<std::pair<CUcontext, CUcontext>>;
  return all;
}

// Those that are done, and for which no thread waits.
void Prune() SLUICE_REQUIRES(g_mutex) {
  std::erase_if(All(), [](const std::shared_ptr<Copy>& copy) { return copy->is_done && copy.use_count() == 1; });
}

template <typename Wanted>
void AwaitThose(const Wanted& wanted) {
  Copies waiting;
  {
    MutexLock lock(g_mutex);
    for (const std::shared_ptr<Copy>& copy : All()) {
      if (wanted(*copy)) waiting.push_back(copy);
    }
  }
  if (waiting.empty()) return;
  for (const std::shared_ptr<Copy>& copy : waiting) {
    CUevent event = nullptr;
    {
      MutexLock lock(g_mutex);
      if (copy->is_done) continue;
      event = copy->event;
      ++copy->waiters;
    }
    {
      const RelaxedCapture relaxed;
      const ContextScope scope(copy->owner);
      if (scope.is_current()) g_real.cuEventSynchronize(event);
    }
    MutexLock lock(g_mutex);
    --copy->waiters;
    copy->is_done = true;
  }
  MutexLock lock(g_mutex);
  waiting.clear();
  Prune();
}

}  // namespace

void NoteContext(CUcontext context) {
  static std::atomic<CUcontext> first{nullptr};
  CUcontext none = nullptr;
  if (!first.compare_exchange_strong(none, context) && none != context)
    g_several_contexts.store(true, std::memory_order_relaxed);
}

// The event is recorded without the lock: the driver may block where its queue is full.
void Note(CUcontext context, const Stream& stream, CUcontext owner) {
  auto copy = std::make_shared<Copy>(context, owner, &stream, stream.seq.load(std::memory_order_acquire));
  {
    const RelaxedCapture relaxed;
    const ContextScope scope(stream.owner);
    if (!scope.is_current() || g_real.cuEventCreate(&copy->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
    if (g_real.cuEventRecord(copy->event, stream.handle) != CUDA_SUCCESS) return;
  }
  MutexLock lock(g_mutex);
  // The new event covers them.
  std::erase_if(All(), [&](const std::shared_ptr<Copy>& older) {
    return older->context == context && older->owner == owner && older->stream == &stream && older->seq <= copy->seq &&
           older.use_count() == 1;
  });
  All().push_back(std::move(copy));
}

void Await(CUcontext context) {
  if (!g_several_contexts.load(std::memory_order_relaxed)) return;
  AwaitThose([&](const Copy& copy) { return copy.context == context; });
}

bool AnyPending(CUcontext context) {
  if (!g_several_contexts.load(std::memory_order_relaxed)) return false;
  const RelaxedCapture relaxed;
  MutexLock lock(g_mutex);
  bool is_pending = false;
  for (const std::shared_ptr<Copy>& copy : All()) {
    if (copy->context != context || copy->is_done) continue;
    const ContextScope scope(copy->owner);
    copy->is_done = !scope.is_current() || g_real.cuEventQuery(copy->event) != CUDA_ERROR_NOT_READY;
    is_pending |= !copy->is_done;
  }
  Prune();
  return is_pending;
}

void EndContext(CUcontext context) {
  constexpr int kMaxAttempts = 2000;
  constexpr timespec kPause{0, 1'000'000};
  if (!g_several_contexts.load(std::memory_order_relaxed) || Devices().empty()) return;  // none: a forked child
  const auto is_part = [&](const Copy& copy) { return copy.context == context || copy.owner == context; };
  AwaitThose(is_part);
  // Threads that wait for the same copies wake now.
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    bool is_awaited = false;
    {
      MutexLock lock(g_mutex);
      std::erase_if(All(), [&](const std::shared_ptr<Copy>& copy) SLUICE_REQUIRES(g_mutex) {
        if (!is_part(*copy)) return false;
        is_awaited |= copy->waiters != 0;
        if (copy->waiters == 0) copy->End();
        return copy->waiters == 0;
      });
    }
    if (!is_awaited) return;
    nanosleep(&kPause, nullptr);
  }
}

void ForgetContext(CUcontext context) {
  MutexLock lock(g_mutex);
  std::erase_if(Accesses(), [&](const auto& pair) { return pair.first == context || pair.second == context; });
}

void NoteAccess(CUcontext user, CUcontext peer, bool is_enabled) {
  MutexLock lock(g_mutex);
  if (is_enabled) {
    Accesses().insert({user, peer});
  } else {
    Accesses().erase({user, peer});
  }
}

bool HasAccess(CUcontext user, CUcontext peer) {
  MutexLock lock(g_mutex);
  return Accesses().contains({user, peer});
}

}  // namespace sluice::peer_copies
