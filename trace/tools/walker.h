// Walks a trace from launch to launch.
#ifndef SLUICE_TRACE_TOOLS_WALKER_H_
#define SLUICE_TRACE_TOOLS_WALKER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

// The engine keeps allocations up to this size in unevictable memory (docs/design/residency.md), and does not look for
// tensors inside: predicted or touched bytes in them move nothing.
inline constexpr uint64_t kMaxSmallBlockBytes = uint64_t{2} << 20;

inline bool IsDeviceAlloc(const Event& e) {
  return e.type == Type::kAlloc && e.c != static_cast<uint64_t>(AllocKind::kHost);
}

// The work that a capture took.
struct Captured {
  std::vector<const Launch*> launches;
  std::vector<Range> copies;  // the ranges that copies and memsets touch
};

// Walks the events of a trace up to its launches, so that two traces can be walked side by side.
class Walker {
 public:
  explicit Walker(const Trace& trace) : trace_(trace) {}

  // Passes events up to and including the next launch of a kernel or a graph; null at the end. Allocations and frees on
  // the way are appended to `allocated` and `freed`; ranges that copies and memsets touched outside captures to
  // `copied`, if given.
  const Event* Next(std::vector<Event>& allocated, std::vector<uint64_t>& freed, std::vector<Range>* copied = nullptr) {
    while (at_ < trace_.events.size()) {
      const Event& e = trace_.events[at_++];
      if (IsDeviceAlloc(e)) allocated.push_back(e);
      if (e.type == Type::kFree) freed.push_back(e.a);
      Follow(e, copied);
      if (e.type == Type::kLaunch || e.type == Type::kGraphLaunch) return &e;
    }
    return nullptr;
  }
  // The captured work of the launched graph; null where the graph was built by calls that traces do not hold: a player
  // skips its launches.
  const Captured* Played(const Event& graph_launch) const {
    const auto it = executables_.find(graph_launch.a);
    return it == executables_.end() ? nullptr : &it->second;
  }

 private:
  // Work on a stream without a capture of its own has joined the newest capture.
  Captured* Capturing(uint64_t stream) {
    const auto it = std::find_if(open_.rbegin(), open_.rend(), [&](const auto& c) { return c.first == stream; });
    return it != open_.rend() ? &it->second : open_.empty() ? nullptr : &open_.back().second;
  }
  void Follow(const Event& e, std::vector<Range>* copied) {
    if (e.type == Type::kCaptureBegin) open_.push_back({e.a, {}});
    if (e.type == Type::kLaunch && (trace_.launches[e.a].flags & kLaunchCaptured) != 0) {
      const Launch& launch = trace_.launches[e.a];
      if (Captured* const to = Capturing(launch.stream)) to->launches.push_back(&launch);
    }
    const bool open = std::any_of(open_.begin(), open_.end(), [&](const auto& c) { return c.first == e.a; });
    std::vector<Range>* const copies = open ? &Capturing(e.a)->copies : copied;
    if (copies != nullptr && (e.type == Type::kCopy || e.type == Type::kSet)) {
      if (e.type == Type::kSet || (e.e & kCopyToDevice) != 0)
        copies->push_back({e.b, e.type == Type::kSet ? e.c : e.d});
      if (e.type == Type::kCopy && (e.e & kCopyFromDevice) != 0) copies->push_back({e.c, e.d});
    }
    if (e.type == Type::kCaptureEnd && open) {
      const auto it = std::find_if(open_.begin(), open_.end(), [&](const auto& c) { return c.first == e.a; });
      graphs_[e.b] = std::move(it->second);
      open_.erase(it);
    }
    if (e.type == Type::kGraphInstantiate) {
      executables_.erase(e.b);
      if (const auto it = graphs_.find(e.a); it != graphs_.end()) executables_[e.b] = it->second;
    }
  }

  const Trace& trace_;
  size_t at_ = 0;
  std::vector<std::pair<uint64_t, Captured>> open_;  // by stream
  std::map<uint64_t, Captured> graphs_, executables_;
};

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_WALKER_H_
