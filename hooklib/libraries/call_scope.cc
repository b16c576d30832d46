#include "hooklib/libraries/call_scope.h"

#include <memory>

namespace sluice {

std::atomic<bool> g_library_calls_wanted{false};
LibraryCounters g_library_counters;

namespace {

constexpr int kDepth = 4;  // a library that calls another one from outside both; more is passed through

// Freed with its thread; entries called later than that (from other objects' destructors) describe nothing.
struct Sets {
  libraries::AccessSet of[kDepth];
  ~Sets();
};
thread_local LibraryCall* t_current = nullptr;
thread_local int t_depth = 0;
thread_local bool t_ended = false;
thread_local std::unique_ptr<Sets> t_sets;

Sets::~Sets() { t_ended = true; }

}  // namespace

LibraryCall* CurrentLibraryCall() { return t_current; }

bool LibraryCall::Covers(uint64_t address) const {
  // By address and few: ranges do not nest in more than a handful of calls.
  for (const LibraryRange& range : ranges) {
    if (range.address > address) break;
    if (address - range.address < (range.bytes ? range.bytes : 1)) return true;
  }
  return false;
}

namespace libraries {

CallScope::CallScope(const char* symbol) {
  if (t_ended || t_depth == kDepth) return;
  if (!t_sets) t_sets.reset(new (std::nothrow) Sets);
  if (!t_sets) return;
  set_ = &t_sets->of[t_depth++];
  set_->Clear();
  call_.symbol = symbol;
  outer_ = t_current;
}

void CallScope::Publish() {
  set_->Close();
  call_.ranges = set_->ranges();
  call_.known = set_->known();
  call_.has_unseen_pointers = set_->unknown_reason() == UnknownReason::kPointerArray;
  call_.streaming = set_->streaming();
  g_library_counters.calls.fetch_add(1, std::memory_order_relaxed);
  g_library_counters.unknown[static_cast<std::size_t>(set_->unknown_reason())].fetch_add(1, std::memory_order_relaxed);
  if (outer_) outer_->has_queued = true;
  t_current = &call_;
}

CallScope::~CallScope() {
  if (!set_) return;
  t_current = outer_;
  --t_depth;
}

}  // namespace libraries
}  // namespace sluice
