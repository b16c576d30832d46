#include "hooklib/engine/device/green_contexts.h"

#include <atomic>
#include <map>

#include "common/mutex.h"

namespace sluice {

namespace {

std::atomic<bool> g_any{false};
Mutex g_mutex;  // no other lock is taken inside
std::map<CUcontext, CUgreenCtx>& Known() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUcontext, CUgreenCtx>();
  return map;
}

}  // namespace

void NoteGreenContext(CUcontext context, CUgreenCtx green) {
  MutexLock lock(g_mutex);
  Known()[context] = green;
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
    if (known == green) return context;
  }
  return nullptr;
}

void ForgetGreenContext(CUgreenCtx green) {
  MutexLock lock(g_mutex);
  std::erase_if(Known(), [green](const auto& entry) { return entry.second == green; });
}

}  // namespace sluice
