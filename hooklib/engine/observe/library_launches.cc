#include "hooklib/engine/observe/library_launches.h"

#include "common/mutex.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/observe/captured_calls.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/params.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

void DropOperands(const LibraryCall& call, NamedMemory* named) {
  // Where the call's set may be incomplete, all words of the parameters stay.
  if (!call.known) return;
  std::erase_if(named->words, [&call](uint64_t word) { return call.Covers(word); });
  std::erase_if(named->reaches, [&call](const libraries::Reach& reach) { return call.Covers(reach.pointer); });
}

bool AttachLibraryCall(Stream* stream, LibraryCall* call, NamedMemory* named, std::vector<memory::Extent>* exact,
                       size_t* read_only, size_t* overwritten) {
  // The first launch that the call queues. A blocking stream may be one of several that the library keeps and that only
  // the legacy stream orders: writes on them are in no order among themselves.
  const bool is_first = !call->has_queued && call->known && (!stream->blocking || stream->legacy());
  call->has_queued = true;
  ++call->launches;
  g_library_counters.launches.fetch_add(1, std::memory_order_relaxed);
  DropOperands(*call, named);
  Device* const device = stream->device;
  {
    DeviceLock lock(device->mutex);
    NoteWordsOutside(device, *call, named->words);
    if (call->known) NoteExtentsSeen(device);
  }
  const auto is_only_read = [call](const LibraryRange& range) {
    return call->known && range.bytes && range.read && !range.written;
  };
  for (const LibraryRange& range : call->ranges) {
    if (!is_only_read(range) || !MayBeTracked(range.address)) continue;
    exact->push_back({range.address, range.bytes});
    ++*read_only;
  }
  for (const LibraryRange& range : call->ranges) {
    if (is_only_read(range) || !MayBeTracked(range.address) || (is_first && range.overwritten)) continue;
    if (range.bytes) {
      exact->push_back({range.address, range.bytes});
    } else {
      named->words.push_back(range.address);
    }
  }
  for (const LibraryRange& range : call->ranges) {
    if (!is_first || !range.overwritten || !MayBeTracked(range.address)) continue;
    exact->push_back({range.address, range.bytes});
    ++*overwritten;
  }
  return call->known;
}

void NoteWordsOutside(Device* device, const LibraryCall& call, const std::vector<uint64_t>& words) {
  uint64_t outside = 0;
  for (const uint64_t word : words) outside += !call.Covers(word) && device->live.Resolve(word);
  if (outside) g_library_counters.words_outside_sets.fetch_add(outside, std::memory_order_relaxed);
}

void WantLibraryCalls() {
  // Guards no data: the last write is of the newest state. Taken with a device's lock held, or alone.
  static Mutex mutex;
  MutexLock lock(mutex);
  bool wanted = Recording();
  for (const auto& device : Devices()) wanted |= device->active.load() || (device->managed && g_captures.load() > 0);
  g_library_calls_wanted = wanted;
}

void NoteExtentsSeen(Device* device) {
  if (device->extents_seen) return;
  device->extents_seen = true;
  device->UpdateMode();
}

void MarkCapturedCall(const Stream& stream, const LibraryCall& call) {
  for (const LibraryRange& range : call.ranges) {
    if (MayBeTracked(range.address)) stream.device->MarkCaptured(range.address);
  }
}

void LogLibraryCounters() {
  const LibraryCounters& c = g_library_counters;
  if (c.calls.load() == 0) return;
  SLUICE_LOG(kDebug,
             "library_calls calls=%llu launches=%llu words_outside_sets=%llu unknown_null_operand=%llu "
             "unknown_unsupported=%llu "
             "unknown_descriptor=%llu unknown_pointer_array=%llu captured_nodes=%zu",
             static_cast<unsigned long long>(c.calls.load()), static_cast<unsigned long long>(c.launches.load()),
             static_cast<unsigned long long>(c.words_outside_sets.load()),
             static_cast<unsigned long long>(c.unknown[static_cast<size_t>(UnknownReason::kNullOperand)].load()),
             static_cast<unsigned long long>(c.unknown[static_cast<size_t>(UnknownReason::kUnsupported)].load()),
             static_cast<unsigned long long>(c.unknown[static_cast<size_t>(UnknownReason::kDescriptor)].load()),
             static_cast<unsigned long long>(c.unknown[static_cast<size_t>(UnknownReason::kPointerArray)].load()),
             CapturedNodes());
}

}  // namespace sluice
