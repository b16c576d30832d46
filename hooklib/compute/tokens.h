// Compute tokens over CUDA: time_slices.h with events for stamps and the agent's socket for its port. Of Device it
// knows only the TimeSlices that it makes for it.
//
// Never waits inside a driver's callback: only launches wait, and CUDA refuses launches made there. A launch into a
// capturing stream is no work yet and passes; the graph's own launch waits.
#ifndef SLUICE_HOOKLIB_COMPUTE_TOKENS_H_
#define SLUICE_HOOKLIB_COMPUTE_TOKENS_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "hooklib/compute/time_slices.h"
#include "hooklib/engine/device/streams.h"
#include "sluice/wire.h"

namespace sluice::client {
class AgentClient;
}

namespace sluice {

// Timing events by context, reused.
class EventStamps final : public compute::StampClock {
 public:
  void* Record(void* stream, void* again) override;
  bool Reached(void* stamp) override;
  bool Elapsed(void* from, void* to, int64_t* ns) override;
  void Free(void* stamp) override;
  bool BelongsTo(void* stamp, const void* context) override;
  uint64_t Now() override;
  void Sleep(uint64_t ns) override;
  void Drop(CUcontext context);

 private:
  Mutex mutex_;  // held while the driver makes an event; no other lock of the hook is taken inside
  std::unordered_map<CUcontext, std::vector<void*>> free_ SLUICE_GUARDED_BY(mutex_);
};

// One device's time slices, and their messages to the agent.
class Tokens final : public compute::TimeSlicePort {
 public:
  // `uuid` is read at the first request.
  explicit Tokens(const std::string* uuid) : uuid_(uuid), time_slices_(&stamps_, this) {}
  compute::TimeSlices& time_slices() { return time_slices_; }
  bool wanted() const { return time_slices_.wanted(); }
  // Before the first launch. Null: no agent, nothing is ever demanded.
  void SetClient(client::AgentClient* client) { client_ = client; }
  void ContextEnds(CUcontext context) { time_slices_.DropStamps(context); }  // before the driver destroys its events
  void DropContext(CUcontext context);

  bool Request(uint64_t burst_ns) override;
  void Release(uint64_t id, uint64_t used_ns, uint64_t burst_ns, bool estimated) override;

 private:
  sluice_token Token() const;
  const std::string* const uuid_;
  client::AgentClient* client_ = nullptr;
  EventStamps stamps_;
  compute::TimeSlices time_slices_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_COMPUTE_TOKENS_H_
