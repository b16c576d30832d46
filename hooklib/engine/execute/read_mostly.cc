// Device: which read-mostly duplicates end, and when. Policy says which ranges are duplicates.
#include "hooklib/engine/device/device_transfers.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

// At once, even where another stream still reads the duplicate. Advice is a call and has no place in a stream's order.
// To give it a place behind those readers, the writer's stream or the host would have to wait for them. The application
// did not ask for that, and they may wait for the next work of this stream or of the host: a deadlock. Not to withdraw
// costs more: a write to a duplicate takes 3.6 s a GiB, and whether a kernel that names it writes is not known. So
// bytes that the readers have not read yet are faulted in, once: the range is no duplicate again for 1,024 launches at
// least.
void DeviceTransfers::Withdraw() {
  if (!residency.has_withdrawn()) return;
  const std::vector<memory::Extent> runs = residency.TakeWithdrawn();
  RelaxedCapture relaxed;
  WithdrawReadMostly(runs, ordinal);
}

void DeviceTransfers::NoteWritersOfCopies(const AccessSet& set, bool anywhere) {
  if (anywhere) residency.ForgetAllCopies();
  for (size_t i = 0; i < set.extents.size() && residency.has_copies(); ++i) {
    if (!set.only_read[i]) residency.NoteWritten(set.extents[i]);
  }
  // A learned range is no proof of where a launch does not write.
  for (size_t i = 0; i < set.unbounded.size() && residency.has_copies(); ++i)
    residency.NoteWritten(set.unbounded[i].block);
  Withdraw();
}

void DeviceTransfers::NoteCopied(const AccessSet& set) {
  for (size_t i = 0; i < set.extents.size(); ++i) {
    if (!set.only_read[i] && !MayBeWrittenByHost(set.extents[i].base)) residency.NoteCopied(set.extents[i]);
  }
}

// The application may write managed memory of its own through the pointer at any time.
bool DeviceTransfers::MayBeWrittenByHost(memory::Va va) {
  const memory::Allocation* allocation = live.Find(va, nullptr);
  return !allocation || allocation->app_managed || allocation->unevictable;
}

void DeviceTransfers::NoteUnplannedWrite(memory::Extent range, bool copy) {
  DeviceLock lock(mutex);
  // Kernels since the last copy may have written ranges that were copied before them.
  const uint64_t launches = CountLaunches();
  if (!active.load(std::memory_order_relaxed) && launches != launches_at_unplanned_copy_) residency.ForgetAllCopies();
  launches_at_unplanned_copy_ = launches;
  residency.NoteWritten(range);
  Withdraw();
  if (copy && !MayBeWrittenByHost(range.base)) residency.NoteCopied(range);
}

void DeviceTransfers::NoteUnknownWriter() {
  DeviceLock lock(mutex);
  residency.ForgetAllCopies();
  Withdraw();
}

void DeviceTransfers::DropExcessDuplicates() {
  if (!active.load(std::memory_order_relaxed)) return;
  ++poll_epoch;
  const policy::Plan& plan = residency.DropExcessDuplicates();
  RelaxedCapture relaxed;
  WithdrawReadMostly(plan.now.drop, ordinal);
}

}  // namespace sluice
