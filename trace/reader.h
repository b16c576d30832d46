// Reads a trace file, plain or zstd, into memory and checks it.
#ifndef SLUICE_TRACE_READER_H_
#define SLUICE_TRACE_READER_H_

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format.h"
#include "recorder.h"

namespace sluice::trace {

struct Function {
  std::string name;
  std::vector<Parameter> parameters;
};

struct Range {
  uint64_t address, bytes;
  Access access = Access::kUnknown;
  friend bool operator==(const Range&, const Range&) = default;
};

struct Launch {
  uint32_t function = 0;
  uint64_t stream = 0;
  uint32_t grid[3] = {}, block[3] = {};
  uint32_t shared_bytes = 0, flags = 0;
  uint64_t duration_ns = 0;  // 0: not known
  std::vector<uint64_t> words;
  std::vector<AccessRange> accesses;
  bool has_truth = false;
  std::vector<Range> truth;
  // Raw recordings only:
  std::vector<Range> guessed;
  bool has_changed = false;
  std::vector<Range> changed;
};

// The access sets of a graph's nodes, as the engine knew them at the graph's launch.
struct GraphLaunch {
  bool has_nodes = false;  // false: the engine recorded none
  std::vector<std::vector<AccessRange>> nodes;
};

// One record. a, b, c, d, e are the record's fields after dt, in the order of format.h, with these exceptions:
// - a launch's `a` is its index in Trace::launches
// - a step's `a` is its index in Trace::step_names
// - a report's `b` is the signed bytes
// - a graph launch's `c` is its index in Trace::graph_launches
struct Event {
  Type type;
  uint64_t time_ns;  // since the trace's first event
  uint64_t a = 0, b = 0, c = 0, d = 0, e = 0;
};

struct Trace {
  uint32_t flags = 0;
  std::map<std::string, std::string> meta;
  std::vector<Function> functions;
  std::vector<Event> events;
  std::vector<Launch> launches;
  std::vector<GraphLaunch> graph_launches;
  std::vector<std::string> step_names;
  bool complete = false;  // false: the recording was cut off; everything before the cut is here
};

// High-water marks of live device bytes: by allocations (reports left aside), and by PyTorch's reports.
struct LiveBytes {
  uint64_t allocated_peak = 0, reported_peak = 0;
};
LiveBytes PeakLive(const Trace& trace);

// InvalidArgument with file, byte and reason where the contents are wrong. A file that merely ends early is read up to
// its end, with `complete` false.
absl::StatusOr<Trace> Load(const std::string& path);
absl::StatusOr<Trace> Parse(std::string_view bytes, const std::string& name);

// Copies the trace `from`, plain or packed, to `to` as one zstd frame, through a temporary name, so that `to` is whole
// or absent. Level 1..19. InvalidArgument where `from` is not a trace by its first bytes or `to` is no plain file.
absl::Status Compress(const std::string& from, const std::string& to, int level);

const char* TypeName(Type type);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_READER_H_
