#include "settle_times.h"

#include <algorithm>
#include <cstdlib>

namespace sluice::trace {
namespace {

void SettleDurations(Trace& trace, const std::vector<std::vector<uint64_t>>& steps, size_t measured) {
  for (size_t i = 0; i < steps[measured].size(); ++i) {
    std::vector<uint64_t> all;
    for (size_t fast = 1; fast < measured; ++fast) {
      if (steps[fast].empty()) continue;
      const uint64_t ns = trace.launches[steps[fast][i]].duration_ns;
      if (ns != 0) all.push_back(ns);
    }
    if (all.empty()) continue;
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
    for (size_t s = 1; s < steps.size(); ++s) {
      if (steps[s].empty()) continue;
      uint64_t& ns = trace.launches[steps[s][i]].duration_ns;
      if (ns == 0 || s >= measured) ns = all[all.size() / 2];
    }
  }
}

// A step's events: [begin, end), the first its marker.
struct Span {
  size_t begin, end;
};

std::vector<Span> Spans(const std::vector<Event>& events) {
  std::vector<Span> spans;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].type != Type::kStep) continue;
    if (!spans.empty()) spans.back().end = i;
    spans.push_back({i, events.size()});
  }
  return spans;
}

// The times of a step's launches and of its end, from its marker.
std::vector<uint64_t> Pace(const std::vector<Event>& events, const Span& span) {
  std::vector<uint64_t> pace;
  for (size_t i = span.begin; i < span.end; ++i) {
    if (events[i].type == Type::kLaunch) pace.push_back(events[i].time_ns - events[span.begin].time_ns);
  }
  const size_t last = span.end < events.size() ? span.end : span.end - 1;
  pace.push_back(events[last].time_ns - events[span.begin].time_ns);
  return pace;
}

}  // namespace

void SettleTimes(Trace& trace, const std::vector<std::vector<uint64_t>>& steps, size_t measured) {
  SettleDurations(trace, steps, measured);

  std::vector<Event>& events = trace.events;
  const std::vector<Span> spans = Spans(events);
  const auto light = trace.meta.find("light-from");
  const int light_from = light == trace.meta.end() ? -1 : std::atoi(light->second.c_str());
  const size_t first_like = light_from >= 1 ? 1 : measured;  // the first step that gets another step's times
  std::vector<uint64_t> pace = Pace(events, spans[measured - 1]);
  for (size_t s = light_from >= 1 ? static_cast<size_t>(light_from) : measured; s < measured; ++s) {
    if (steps[s].empty()) continue;
    std::vector<uint64_t> other = Pace(events, spans[s]);
    // Compared up to the last launch: the rest is waiting.
    if (other[other.size() - 2] - other[0] < pace[pace.size() - 2] - pace[0]) pace = std::move(other);
  }

  std::vector<uint64_t> times(events.size());
  uint64_t now = 0, before = 0;  // on the new clock; on the recorded one
  const auto keep = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      now += events[i].time_ns - before;
      before = events[i].time_ns;
      times[i] = now;
    }
  };
  keep(0, spans.empty() ? events.size() : spans[0].begin);
  for (size_t s = 0; s < spans.size(); ++s) {
    if (s < first_like || steps[s].empty()) {
      keep(spans[s].begin, spans[s].end);
      continue;
    }
    // The previous step ended by the pace that it was given, or by its own times.
    if (s > 0 && s - 1 >= first_like && !steps[s - 1].empty()) {
      before = events[spans[s].begin].time_ns;
      times[spans[s].begin] = now;
    } else {
      keep(spans[s].begin, spans[s].begin + 1);
    }
    const uint64_t origin = now;
    size_t first = spans[s].begin + 1, next = 0;
    for (size_t i = first; i < spans[s].end; ++i) {
      const bool last = i + 1 == spans[s].end;
      if (events[i].type != Type::kLaunch && !last) continue;
      // Events between two launches are spread over the time between them.
      const uint64_t from = next == 0 ? 0 : pace[next - 1], until = pace[next];
      for (size_t j = first; j <= i; ++j) times[j] = origin + from + (until - from) * (j - first + 1) / (i - first + 1);
      first = i + 1;
      ++next;
    }
    now = origin + pace.back();
    before = events[spans[s].end - 1].time_ns;
  }
  for (size_t i = 0; i < events.size(); ++i) events[i].time_ns = times[i];
}

}  // namespace sluice::trace
