#include "hooklib/engine/observe/newer_entries.h"

#include <atomic>
#include <set>
#include <string>

#include "common/mutex.h"
#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

Mutex g_mutex;  // no other lock is taken inside
std::set<std::string>& Noted() SLUICE_REQUIRES(g_mutex) {
  static auto& names = *new std::set<std::string>();
  return names;
}
std::atomic<uint64_t> g_count{0};

}  // namespace

uint64_t NewerEntries() { return g_count.load(std::memory_order_relaxed); }

void NoteNewerEntry(const char* symbol, int version) {
  {
    MutexLock lock(g_mutex);
    if (!Noted().insert(symbol).second) return;
    g_count.store(Noted().size(), std::memory_order_relaxed);
  }
  SLUICE_LOG(kWarn,
             "%s of CUDA %d.%d is newer than this sluice, which does not see its calls: memory that it allocates is "
             "outside the budget, and its work is not waited for; a newer sluice helps",
             symbol, version / 1000, version % 1000 / 10);
}

}  // namespace sluice
