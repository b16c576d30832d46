// Device: which duplicates end, and when (core/read_mostly.cc says what they are).
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

// At once, whoever still reads it on another stream. Advice is a call and has no place in a stream's order. To give it
// one behind those readers, either the writer's stream would have to wait for theirs, which the application did not ask
// for (they may wait for what this stream does next, and both would stand for ever), or the host would, whose next call
// may be what they wait for. Not to withdraw costs more: a write to a duplicate takes 3.6 s a GiB, and of a kernel that
// names it nobody knows whether it writes. So what they have not read yet comes by faults, once: it is no duplicate
// again for 1,024 launches at least.
void Device::Withdraw() {
  if (!residency.has_withdrawn()) return;
  const std::vector<memory::Extent> runs = residency.TakeWithdrawn();
  RelaxedCapture relaxed;
  WithdrawReadMostly(runs, ordinal);
}

void Device::NoteWritersOfCopies(const Touched& by, bool unseen) {
  if (unseen) residency.ForgetAllCopies();
  for (size_t i = 0; i < by.extents.size() && residency.has_copies(); ++i) {
    if (!by.only_read[i]) residency.NoteWritten(by.extents[i]);
  }
  // What was learnt of a launch is no proof of where it does not write.
  for (size_t i = 0; i < loose.size() && residency.has_copies(); ++i) residency.NoteWritten(loose[i].block);
  Withdraw();
}

void Device::NoteCopied(const Touched& by) {
  for (size_t i = 0; i < by.extents.size(); ++i) {
    if (!by.only_read[i] && !MayBeWrittenByHost(by.extents[i].base)) residency.NoteCopied(by.extents[i]);
  }
}

// What the application asked for as managed memory it may write through the pointer at any time.
bool Device::MayBeWrittenByHost(memory::Va va) {
  const memory::Allocation* allocation = live.Find(va, nullptr);
  return !allocation || allocation->app_managed || allocation->unevictable;
}

void Device::NoteUnseenCopy(memory::Extent range, bool copy) {
  std::lock_guard lock(mutex);
  // Kernels since the last copy may have written what came before them.
  const uint64_t launches = CountLaunches();
  if (!active.load(std::memory_order_relaxed) && launches != unseen_launches_) residency.ForgetAllCopies();
  unseen_launches_ = launches;
  residency.NoteWritten(range);
  Withdraw();
  if (copy && !MayBeWrittenByHost(range.base)) residency.NoteCopied(range);
}

void Device::NoteUnknownWriter() {
  std::lock_guard lock(mutex);
  residency.ForgetAllCopies();
  Withdraw();
}

void Device::DropExcessDuplicates() {
  if (!active.load(std::memory_order_relaxed)) return;
  ++look;
  const policy::Plan& plan = residency.DropExcessDuplicates();
  RelaxedCapture relaxed;
  WithdrawReadMostly(plan.now.drop, ordinal);
}

}  // namespace sluice
