#include "hooklib/engine/observe/library_launches.h"

#include "hooklib/engine/device/device.h"
#include "hooklib/engine/observe/captured_calls.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/params.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

void DropOperands(const LibraryCall& call, Named* named) {
  // Where the set may lack something, what the parameters name is kept to the last word.
  if (!call.known) return;
  std::erase_if(named->words, [&call](uint64_t word) { return call.Covers(word); });
  std::erase_if(named->reaches, [&call](const libraries::Reach& reach) { return call.Covers(reach.pointer); });
}

bool AttachLibraryCall(Stream* stream, LibraryCall* call, Named* named, std::vector<memory::Extent>* exact,
                       size_t* reads, size_t* overwritten) {
  // The first thing that the call queues. On a blocking stream it may be one of several that the library keeps and that
  // the legacy stream alone orders: what they write is not behind each other.
  const bool first = !call->has_queued && call->known && (!stream->blocking || stream->legacy());
  call->has_queued = true;
  ++call->launches;
  g_library_counters.launches.fetch_add(1, std::memory_order_relaxed);
  DropOperands(*call, named);
  Device* const device = stream->device;
  {
    std::lock_guard lock(device->mutex);
    NoteWordsBeyond(device, *call, named->words);
    if (call->known) NoteExtentsSeen(device);
  }
  const auto only_read = [call](const LibraryRange& range) {
    return call->known && range.bytes && range.read && !range.written;
  };
  for (const LibraryRange& range : call->ranges) {
    if (!only_read(range) || !MayBeTracked(range.address)) continue;
    exact->push_back({range.address, range.bytes});
    ++*reads;
  }
  for (const LibraryRange& range : call->ranges) {
    if (only_read(range) || !MayBeTracked(range.address) || (first && range.overwritten)) continue;
    if (range.bytes) {
      exact->push_back({range.address, range.bytes});
    } else {
      named->words.push_back(range.address);
    }
  }
  for (const LibraryRange& range : call->ranges) {
    if (!first || !range.overwritten || !MayBeTracked(range.address)) continue;
    exact->push_back({range.address, range.bytes});
    ++*overwritten;
  }
  return call->known;
}

void NoteWordsBeyond(Device* device, const LibraryCall& call, const std::vector<uint64_t>& words) {
  uint64_t beyond = 0;
  for (const uint64_t word : words) beyond += !call.Covers(word) && device->live.Resolve(word);
  if (beyond) g_library_counters.words_outside_sets.fetch_add(beyond, std::memory_order_relaxed);
}

void WantLibraryCalls() {
  static std::mutex mutex;  // who sees the latest state writes last
  std::lock_guard lock(mutex);
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
  SLUICE_LOG(
      kDebug,
      "library calls: %llu described, %llu launches made by them; named by parameters and not by the calls: %llu; "
      "not known: %llu null operand, %llu strange, %llu descriptor not seen, %llu pointer array not seen; kept for %zu "
      "nodes of graphs",
      static_cast<unsigned long long>(c.calls.load()), static_cast<unsigned long long>(c.launches.load()),
      static_cast<unsigned long long>(c.words_outside_sets.load()),
      static_cast<unsigned long long>(c.unknown[static_cast<size_t>(UnknownReason::kNullOperand)].load()),
      static_cast<unsigned long long>(c.unknown[static_cast<size_t>(UnknownReason::kUnsupported)].load()),
      static_cast<unsigned long long>(c.unknown[static_cast<size_t>(UnknownReason::kDescriptor)].load()),
      static_cast<unsigned long long>(c.unknown[static_cast<size_t>(UnknownReason::kPointerArray)].load()),
      CapturedNodes());
}

}  // namespace sluice
