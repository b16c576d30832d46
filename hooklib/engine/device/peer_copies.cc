#include "hooklib/engine/device/peer_copies.h"

#include <ctime>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"

namespace sluice::peer_copies {

namespace {

// Destroyed with g_mutex held, while its owner is alive.
struct Copy {
  Copy(CUcontext of, CUcontext in, const Stream* by) : context(of), owner(in), stream(by) {}
  Copy(const Copy&) = delete;
  ~Copy() {
    if (event) g_real.cuEventDestroy_v2(event);
  }

  const CUcontext context, owner;
  const Stream* const stream;  // compared, never followed
  CUevent event = nullptr;     // changed with g_mutex held, while no thread waits for it
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
    const RelaxedCapture relaxed;
    const ContextScope scope(copy->owner);
    if (scope.is_current()) g_real.cuEventSynchronize(copy->event);
  }
  MutexLock lock(g_mutex);
  for (const std::shared_ptr<Copy>& copy : waiting) copy->is_done = true;
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

void Note(CUcontext context, const Stream& stream, CUcontext owner) {
  const RelaxedCapture relaxed;
  const ContextScope scope(stream.owner);
  if (!scope.is_current()) return;
  MutexLock lock(g_mutex);
  std::shared_ptr<Copy>* known = nullptr;
  for (std::shared_ptr<Copy>& copy : All()) {
    if (copy->context == context && copy->owner == owner && copy->stream == &stream && copy.use_count() == 1)
      known = &copy;
  }
  std::shared_ptr<Copy> copy = known ? *known : std::make_shared<Copy>(context, owner, &stream);
  if (!copy->event && g_real.cuEventCreate(&copy->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
  copy->is_done = g_real.cuEventRecord(copy->event, stream.handle) != CUDA_SUCCESS;
  if (!known) All().push_back(std::move(copy));
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
    copy->is_done = g_real.cuEventQuery(copy->event) != CUDA_ERROR_NOT_READY;
    is_pending |= !copy->is_done;
  }
  Prune();
  return is_pending;
}

void EndContext(CUcontext context) {
  constexpr int kMaxAttempts = 2000;
  constexpr timespec kPause{0, 1'000'000};
  const auto is_part = [&](const Copy& copy) { return copy.context == context || copy.owner == context; };
  AwaitThose(is_part);
  // Other threads may wait for the same copies: they wake now.
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    {
      MutexLock lock(g_mutex);
      Prune();
      std::erase_if(Accesses(), [&](const auto& pair) { return pair.first == context || pair.second == context; });
      bool is_used = false;
      for (const std::shared_ptr<Copy>& copy : All()) is_used |= is_part(*copy);
      if (!is_used) return;
    }
    nanosleep(&kPause, nullptr);
  }
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
