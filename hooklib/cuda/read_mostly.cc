// Device: which duplicates end, and when (core/read_mostly.cc says what they are).
#include "hooklib/cuda/device.h"
#include "hooklib/cuda/driver.h"
#include "hooklib/cuda/work.h"

namespace sluice {

void Device::Withdraw() {
  if (!residency.has_withdrawn()) return;
  const std::vector<core::Extent> runs = residency.TakeWithdrawn();
  RelaxedCapture relaxed;
  WithdrawReadMostly(runs, ordinal);
}

void Device::NoteWritersOfCopies(const Touched& by) {
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
bool Device::MayBeWrittenByHost(core::Va va) {
  const core::Allocation* allocation = live.Find(va, nullptr);
  return !allocation || allocation->app_managed || allocation->held;
}

void Device::NoteUnseenCopy(core::Extent range, bool copy) {
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

void Device::DropBeyond() {
  if (!active.load(std::memory_order_relaxed)) return;
  ++look;
  const core::Plan& plan = residency.DropBeyond();
  RelaxedCapture relaxed;
  WithdrawReadMostly(plan.now.drop, ordinal);
}

}  // namespace sluice
