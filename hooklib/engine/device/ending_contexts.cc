#include "hooklib/engine/device/ending_contexts.h"

#include <map>
#include <set>

#include "common/mutex.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/streams.h"

namespace sluice {

namespace {

struct Holder {
  uint64_t thread;
  int depth;
};

struct Ends {
  Mutex mutex;  // no other lock is taken and no driver call is made inside
  Condition changed;
  std::multiset<CUcontext> contexts SLUICE_GUARDED_BY(mutex);
  std::map<CUdevice, Holder> primaries SLUICE_GUARDED_BY(mutex);
};
Ends& All() {
  static auto& ends = *new Ends;
  return ends;
}

}  // namespace

ContextEnd::ContextEnd(CUcontext context) : context_(context) {
  MutexLock lock(All().mutex);
  All().contexts.insert(context);
}
ContextEnd::~ContextEnd() {
  MutexLock lock(All().mutex);
  All().contexts.erase(All().contexts.find(context_));
  All().changed.NotifyAll();
}

PrimaryScope::PrimaryScope(CUdevice gpu) : gpu_(gpu) {
  MutexLock lock(All().mutex);
  auto holder = All().primaries.find(gpu);
  while (holder != All().primaries.end() && holder->second.thread != ThisThread()) {
    All().changed.Wait(All().mutex);
    holder = All().primaries.find(gpu);
  }
  ++All().primaries.try_emplace(gpu, Holder{ThisThread(), 0}).first->second.depth;
}
PrimaryScope::~PrimaryScope() {
  MutexLock lock(All().mutex);
  const auto holder = All().primaries.find(gpu_);
  if (--holder->second.depth == 0) All().primaries.erase(holder);
  All().changed.NotifyAll();
}

void AwaitContextEnd(CUcontext context) {
  if (Devices().empty()) return;  // a forked child
  MutexLock lock(All().mutex);
  while (All().contexts.contains(context)) All().changed.Wait(All().mutex);
}

}  // namespace sluice
