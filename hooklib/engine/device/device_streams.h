// The contexts and streams of a device (device_streams.cc), and how far their work is (device_timeline.cc).
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_STREAMS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_STREAMS_H_

#include <optional>
#include <vector>

#include "hooklib/engine/device/device_container.h"

namespace sluice {

bool AnyGates();  // of any context, ever (DeviceStreams::Gate)

class DeviceStreams : public DeviceContainer {
 public:
  Context* ContextFor(CUcontext handle) SLUICE_DEVICE_LOCKED;
  // The context that owns memory which is allocated while `current` is current: a green context has none of its own.
  CUcontext MemoryContext(CUcontext current);
  CUstream Housekeeping(Context* context) SLUICE_DEVICE_LOCKED;
  // All work that the application queues in the context from now on waits for the event, and that of its green
  // contexts. In place of cuCtxWaitEvent, which would stop the engine's streams, too: a wait for a value ends by a
  // copy of the engine's. Nothing: the driver must answer, since a stream of the context is captured.
  std::optional<CUresult> Gate(CUcontext handle, CUevent event) SLUICE_TAKES_DEVICE_LOCK;
  // The stream waits for gates that it does not know yet. On the thread of a per-thread default stream.
  // False: not now, since it is captured, or a capture bars it.
  bool PassGates(Stream* stream) SLUICE_DEVICE_LOCKED;
  Stream* StreamById(memory::StreamId id) SLUICE_DEVICE_LOCKED;  // null: its context is gone
  // The state of a new stream: that of an ended one whose work is over, of the context with its queues, or of another
  // one that left none. Or a new one.
  Stream* NewStream(Context* context) SLUICE_DEVICE_LOCKED;
  // No more work is added to the stream. On the thread of a per-thread default stream.
  void Retire(Stream* stream) SLUICE_DEVICE_LOCKED;
  // Memory at this address is freed behind the work of another GPU's stream: it counts as work of this device, so that
  // fences wait for it.
  void NotePeerFree(const Stream& stream, memory::Va address) SLUICE_TAKES_DEVICE_LOCK;
  // The context whose work cuMemFree of the block at this address waits for; null: of none.
  CUcontext ContextOfBlock(memory::Va address, bool* app_managed) SLUICE_TAKES_DEVICE_LOCK;
  // The card for which the driver is to count and record; null: the only one, which may have another name there.
  const unsigned char* UuidForDriver() const;

  // --- events (device_timeline.cc) ---
  // Sets an event behind everything queued on the stream so far. False: that is not possible now.
  bool RecordEvent(Stream* stream) SLUICE_DEVICE_LOCKED;
  void PollEvents(Stream* stream) SLUICE_DEVICE_LOCKED;
  void PollQueue(TransferQueue* queue, EventPool* pool) SLUICE_DEVICE_LOCKED;
  // How much is done of the work that the streams held at the first call with these marks. `*all_seen`: the rest will
  // be seen to finish. On a thread's own stream it is, if that thread queues more.
  uint64_t CompletedWork(std::vector<memory::Mark>* marks, bool* all_seen) SLUICE_DEVICE_LOCKED;
  // Transfers of the stream that are not done; a discard with its populating counts twice.
  size_t OutstandingTransfers(Stream* stream) SLUICE_DEVICE_LOCKED {
    const bool none = stream->fetch_queue.events.empty() && stream->evict_queue.events.empty() &&
                      stream->discard_queue.events.empty();
    return none ? 0 : CountOutstanding(stream);
  }
  size_t CountOutstanding(Stream* stream) SLUICE_DEVICE_LOCKED;
  // Waits for the work that the context of this block has queued, as the driver's cuMemFree does. Another address, or
  // memory of a pool: returns at once. An error is that of the work.
  CUresult AwaitContextOf(CUdeviceptr block) SLUICE_TAKES_DEVICE_LOCK;
  // Waits for the work that the application has queued in the context, as cuCtxSynchronize does, but not for fetches
  // for later work. Nothing: none is under way, or the driver alone can wait for all of the work. Evictions that end an
  // excess over the budget are waited for: the GPU holds no more than that when the call returns.
  std::optional<CUresult> AwaitApplication(CUcontext handle) SLUICE_TAKES_DEVICE_LOCK;
  // memory::Timeline
  bool Done(memory::Mark mark) final SLUICE_DEVICE_LOCKED;
  bool MarkAll(std::vector<memory::Mark>* marks) final SLUICE_DEVICE_LOCKED;
  bool InDone(memory::StreamId stream, uint64_t op) final SLUICE_DEVICE_LOCKED;
  bool OutDone(memory::StreamId stream, uint64_t op) final SLUICE_DEVICE_LOCKED;

 protected:
  bool IsPartOf(const Context& context, CUcontext handle);  // the context itself, or one of its green contexts
  using DeviceContainer::DeviceContainer;
  void PollPeerFrees(Stream* stream) SLUICE_DEVICE_LOCKED;
  // --- device_waits.cc ---
  struct AwaitedWork {  // of a stream, or of a context's gate
    memory::Mark mark;
    const Context* context;  // compared, never followed: it may have ended
    CUcontext handle;
    CUevent event;  // null: none could be recorded now
    bool is_captured;
  };
  // `*is_hidden`: only a wait for the whole context shows the end of some of it.
  std::vector<AwaitedWork> CollectWork(CUcontext handle, bool* is_hidden) SLUICE_DEVICE_LOCKED;
  CUresult AwaitWork(const std::vector<AwaitedWork>& awaited) SLUICE_TAKES_DEVICE_LOCK;
  // The work is over. `is_whole`: also that without an event.
  void NoteAwaited(const std::vector<AwaitedWork>& awaited, bool is_whole) SLUICE_DEVICE_LOCKED;
  void GiveEvents(const std::vector<AwaitedWork>& awaited) SLUICE_DEVICE_LOCKED;
  void AwaitByQueries(memory::Mark mark) SLUICE_TAKES_DEVICE_LOCK;
  Context* FreedIn(memory::Va address, bool* app_managed) SLUICE_DEVICE_LOCKED;  // as ContextOfBlock
  Context* OwnerOf(memory::Va block, bool is_unevictable) SLUICE_DEVICE_LOCKED;  // by its arena; null: none
  bool IsOver(Stream* stream) SLUICE_DEVICE_LOCKED;  // its work, and everything on its queues
  // What green contexts that ended have left to the primary one.
  void InheritFromPrimary(Context* green) SLUICE_DEVICE_LOCKED;
  bool BelongsToContext(Stream* stream) SLUICE_DEVICE_LOCKED;  // it has queues, or events, there
  // Whether all work is done that the driver's cuMemFree of the context's memory waits for; green contexts' is part.
  bool IsIdle(const Context* context) SLUICE_DEVICE_LOCKED;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_STREAMS_H_
