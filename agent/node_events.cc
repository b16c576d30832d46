// Node: its events. One tenant can neither flush those of others nor fill the log, which has a line for each event.
#include <algorithm>

#include "agent/node_private.h"
#include "agent/printable.h"

namespace sluice::agent {
namespace {

constexpr size_t kMaxEvents = 2000;
constexpr size_t kMaxOfOne = 200;  // of one allocation, while others have events too

}  // namespace

void Node::AddEvent(const std::string& allocation, const std::string& kind, const std::string& text,
                    const std::string& pod_uid) {
  events_.push_back({next_event_++, 0, allocation, kind, Printable(text), pod_uid});
  if (listener_) listener_(events_.back());
  ++sources_[allocation].kept;
  if (sources_[allocation].kept <= kMaxOfOne && events_.size() <= kMaxEvents) return;
  // The oldest one of the allocation that has most of them.
  const auto most = std::ranges::max_element(sources_, {}, [](const auto& s) { return s.second.kept; });
  const auto oldest = std::ranges::find(events_, most->first, &Event::allocation);
  if (oldest == events_.end()) return;
  events_.erase(oldest);
  if (--most->second.kept == 0 && !by_id_.contains(most->first)) sources_.erase(most);
}

bool Node::TakeEvent(TokenBucket EventSource::* bucket, const std::string& allocation) {
  EventSource& source = sources_[allocation];
  if (!(source.*bucket).Take(now_ns_)) {
    ++source.left_out;
    return false;
  }
  const uint64_t unreported = source.left_out - source.left_out_reported;
  source.left_out_reported = source.left_out;
  if (unreported > 0)
    AddEvent(allocation, "events left out", std::to_string(unreported) + " events of this allocation");
  return true;
}

void Node::AddTenantEvent(const std::string& allocation, const std::string& kind, const std::string& text) {
  if (TakeEvent(&EventSource::caused, allocation)) AddEvent(allocation, kind, text);
}

void Node::AddFinding(const std::string& allocation, const std::string& kind, const std::string& text,
                      const std::string& pod_uid) {
  if (TakeEvent(&EventSource::found, allocation)) AddEvent(allocation, kind, text, pod_uid);
}

void Node::Rejected(const std::string& id, const std::string& reason) {
  if (const auto it = by_id_.find(id); it != by_id_.end()) it->second->refused = true;
  AddTenantEvent(id, "refused", reason);
}

std::vector<Event> Node::EventsAfter(uint64_t number) const {
  std::vector<Event> out;
  for (const Event& e : events_) {
    if (e.number > number) out.push_back(e);
  }
  return out;
}

}  // namespace sluice::agent
