#include "hooklib/engine/device/green_contexts.h"

#include <atomic>
#include <map>

#include "common/mutex.h"

namespace sluice {

namespace {

std::atomic<bool> g_any{false};
Mutex g_mutex;  // no other lock is taken inside
struct Green {
  CUgreenCtx handle = nullptr;
  CUcontext primary = nullptr;  // null: not known yet
};
std::map<CUcontext, Green>& Known() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUcontext, Green>();
  return map;
}

}  // namespace

void NoteGreenContext(CUcontext context, CUgreenCtx green) {
  MutexLock lock(g_mutex);
  Known()[context].handle = green;
  g_any = true;
}

bool IsGreenContext(CUcontext context) {
  if (!g_any.load(std::memory_order_acquire)) return false;
  MutexLock lock(g_mutex);
  return Known().contains(context);
}

CUcontext ContextOfGreen(CUgreenCtx green) {
  MutexLock lock(g_mutex);
  for (const auto& [context, known] : Known()) {
    if (known.handle == green) return context;
  }
  return nullptr;
}

void ForgetGreenContext(CUgreenCtx green) {
  MutexLock lock(g_mutex);
  std::erase_if(Known(), [green](const auto& entry) { return entry.second.handle == green; });
}

CUcontext PrimaryOfGreen(CUcontext context) {
  MutexLock lock(g_mutex);
  const auto it = Known().find(context);
  return it == Known().end() ? nullptr : it->second.primary;
}

void NotePrimaryOfGreen(CUcontext context, CUcontext primary) {
  MutexLock lock(g_mutex);
  if (const auto it = Known().find(context); it != Known().end()) it->second.primary = primary;
}

}  // namespace sluice
