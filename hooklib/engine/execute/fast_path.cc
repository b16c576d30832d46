// WorkScope: launches in steady state, which repeat and whose operands are all resident, without a plan
// (policy/steady/launch_fast_path.h).
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

// Over everything that planning asks of a launch.
uint64_t WorkScope::KeyOf(const Work& work) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t key = work.id ^ uint64_t { work.stream->id } << 32;
  const auto add = [&key](uint64_t value) { key = (key ^ value) * kOdd; };
  for (const uint64_t word : work.words) add(word);
  for (const libraries::Reach& reach : work.reaches) {
    add(reach.pointer);
    add(reach.begin + reach.end * kOdd);
    add(reach.only_read);
  }
  for (const memory::Extent& extent : work.exact) add(extent.base + extent.bytes * kOdd);
  const uint64_t flags = (work.may_write_anywhere ? 2 : 0) | (work.known ? 1 : 0);
  const uint64_t counts = work.words.size() << 48 | work.reaches.size() << 32 | work.read_only << 16 | work.overwritten;
  add(counts + flags * kOdd);
  return key ^ key >> 32;
}

// Whether the launch needs no planning.
bool WorkScope::ServeFast(Stream* stream, uint64_t id, bool known, uint64_t key) {
  Device* const device = stream->device;
  const uint64_t seq = stream->seq.load(std::memory_order_relaxed) + 1;
  // Now and then such a launch is planned all the same: an event is set, the driver's counters are read.
  if (seq >= stream->recorded + kSteadyLaunchesPerEvent) return false;
  policy::SteadySets::Set* const set = device->fast_path.Find(key);
  if (!set || !device->residency.PrepareSteady(stream->id, seq, id, set)) return false;
  CountPlannedLaunch(device, known);
  stream->last_launch = device->residency.launches();
  device->memory_factor.NoteFastLaunch(device->residency.named_bytes());
  return true;
}

bool WorkScope::TryFastPath(Stream* stream, uint64_t id, uint64_t key) {
  Device* const device = stream->device;
  if (CallUnderway::IsNested() || !device->active.load(std::memory_order_relaxed) ||
      stream->mark_wanted.load(std::memory_order_relaxed) ||
      device->raise_expected_until_ns.load(std::memory_order_relaxed)) {
    return false;
  }
  stream->order.lock();
  {
    DeviceLock lock(device->mutex);
    if (device->fast_path.NoteLocked(device->mutex.acquisitions()) && ServeFast(stream, id, true, key)) return true;
  }
  stream->order.unlock();
  return false;
}

// The launch was planned, and nothing was done: the next one like it may take the fast path, if nothing waits to be
// done either.
void WorkScope::RememberFast(const Work& work, uint64_t key) {
  Device* const device = stream_->device;
  policy::Residency& residency = device->residency;
  policy::SteadySets::Set* const set = residency.steady_set();
  if (!set || work.copy || work.hot_reaches || !device->timings.empty() || device->fault_watch.has_ranges() ||
      device->fault_watch.wants_any() || device->fault_watch.Watches(stream_) || residency.awaits_freed() ||
      residency.watches_unnamed() || residency.has_withdrawn() || MayThrottle(work) ||
      LogEnabled(settings::LogLevel::kDebug)) {
    return;
  }
  const Stream* const owner = device->discard_owner;
  if (owner && owner != stream_ && owner->discard_queue.done < device->discard_op) return;
  device->fast_path.Remember(key ? key : KeyOf(work), set);
}

}  // namespace sluice
