#include "reader.h"

#include <absl/strings/str_cat.h>
#include <string.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <unordered_map>

#include "common/read_file.h"
#include "packed.h"

namespace sluice::trace {
namespace {

constexpr uint64_t kMaxWords = 8192;  // CUDA's limit on parameters is 32,764 bytes
constexpr uint64_t kMaxParameterBytes = 8 * kMaxWords;
// No machine has this much memory. Larger ranges come from a damaged file, and the tools would loop over their pages.
constexpr uint64_t kMaxRangeBytes = uint64_t{1} << 44;
constexpr size_t kHeaderBytes = sizeof kMagic + 8;

// An error's text for a range that no memory can have, else empty.
std::string WrongRange(uint64_t address, uint64_t bytes) {
  if (address + bytes < address) return "the range wraps around";
  if (bytes > kMaxRangeBytes) return absl::StrCat("a range of ", bytes, " bytes; at most ", kMaxRangeBytes);
  return {};
}

// Reads the fields of one payload; the first field that does not fit sets bad().
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  uint64_t U() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) return Bad();
      const auto b = static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      if (shift == 63 && b > 1) return Bad();
      value |= static_cast<uint64_t>(b & 0x7f) << shift;
      if (b < 0x80) return value;
    }
    return Bad();
  }
  int64_t S() {
    const uint64_t v = U();
    return static_cast<int64_t>(v >> 1) ^ -static_cast<int64_t>(v & 1);
  }
  uint32_t U32() {
    const uint64_t v = U();
    if (v > UINT32_MAX) Bad();
    return static_cast<uint32_t>(v);
  }
  std::string Str() {
    const uint64_t n = U();
    if (n > bytes_.size()) {
      Bad();
      return {};
    }
    std::string text(bytes_.substr(0, n));
    bytes_.remove_prefix(n);
    return text;
  }
  // A count of items of at least `min_bytes` each: no count makes the caller reserve more than the payload can hold.
  uint64_t Count(uint64_t min_bytes) {
    const uint64_t n = U();
    if (n > bytes_.size() / min_bytes) return Bad();
    return n;
  }
  bool bad() const { return bad_; }
  bool ended() const { return bytes_.empty(); }

 private:
  uint64_t Bad() {
    bad_ = true;
    bytes_ = {};
    return 0;
  }
  std::string_view bytes_;
  bool bad_ = false;
};

class Parser {
 public:
  explicit Parser(Trace& trace) : trace_(trace) {}

  // Appends one record to the trace. An error's text, or empty.
  std::string Record(Type type, std::string_view payload) {
    Cursor in(payload);
    Event event{type, 0};
    switch (type) {
      case Type::kMeta: {
        std::string key = in.Str();
        trace_.meta[std::move(key)] = in.Str();
        return Ended(in);
      }
      case Type::kFunction:
        return ReadFunction(in);
      case Type::kDuration:
      case Type::kTruth:
      case Type::kGuessed:
      case Type::kChanged:
        return ReadLaunchColumn(type, in);
      default:
        break;
    }
    time_ += in.U();
    event.time_ns = time_;
    std::string error;
    switch (type) {
      case Type::kAlloc:
        event.a = in.U(), event.b = in.U(), event.c = in.U(), event.d = in.U(), event.e = in.U();
        error = WrongRange(event.a, event.b);
        if (event.c > static_cast<uint64_t>(AllocKind::kHost)) error = absl::StrCat("kind ", event.c, " is unknown");
        break;
      case Type::kReport:
        event.a = in.U(), event.b = static_cast<uint64_t>(in.S()), event.c = in.U();
        error = WrongRange(event.a, static_cast<int64_t>(event.b) < 0 ? 0 - event.b : event.b);
        break;
      case Type::kLaunch:
        error = ReadLaunch(in, event);
        break;
      case Type::kCopy:
        event.a = in.U(), event.b = in.U(), event.c = in.U(), event.d = in.U(), event.e = in.U();
        error = WrongRange(event.b, event.d);
        if (error.empty()) error = WrongRange(event.c, event.d);
        break;
      case Type::kSet:
        event.a = in.U(), event.b = in.U(), event.c = in.U(), event.d = in.U();
        error = WrongRange(event.b, event.c);
        break;
      case Type::kWorkingSet:
        event.a = in.U(), event.b = in.U(), event.c = in.U();
        break;
      case Type::kFree:
      case Type::kStreamCreate:
      case Type::kEventRecord:
      case Type::kStreamWaitEvent:
      case Type::kCaptureBegin:
      case Type::kCaptureEnd:
      case Type::kGraphInstantiate:
        event.a = in.U(), event.b = in.U();
        break;
      case Type::kGraphLaunch:
        error = ReadGraphLaunch(in, event);
        break;
      case Type::kStreamDestroy:
      case Type::kEventSync:
      case Type::kStreamSync:
        event.a = in.U();
        break;
      case Type::kDeviceSync:
        break;
      case Type::kStep:
        event.a = trace_.step_names.size();
        trace_.step_names.push_back(in.Str());
        break;
      case Type::kEnd:
        if (in.U() != records_) error = "counts another number of records than the file has";
        trace_.complete = true;
        break;
      default:
        return {};  // from a newer recorder: skipped
    }
    if (error.empty()) error = Ended(in);
    if (error.empty() && type != Type::kEnd) trace_.events.push_back(event);
    return error;
  }
  void CountRecord() { ++records_; }

 private:
  static std::string Ended(const Cursor& in) { return in.bad() ? "a field is missing or out of range" : ""; }

  std::string ReadFunction(Cursor& in) {
    const uint64_t id = in.U();
    if (!in.bad() && id != trace_.functions.size()) {
      return absl::StrCat("function ", id, " out of order: ", trace_.functions.size(), " is next");
    }
    Function function{in.Str(), {}};
    for (uint64_t i = in.Count(2); i > 0; --i) {
      const uint64_t offset = in.U32(), bytes = in.U32();
      if (offset + bytes > kMaxParameterBytes) {
        return absl::StrCat("a parameter ends at byte ", offset + bytes, "; at most ", kMaxParameterBytes);
      }
      function.parameters.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
    }
    if (in.bad()) return Ended(in);
    trace_.functions.push_back(std::move(function));
    return {};
  }

  static std::string ReadAccesses(Cursor& in, std::vector<AccessRange>& accesses) {
    for (uint64_t i = in.Count(3); i > 0; --i) {
      AccessRange range{in.U(), in.U(), Access::kUnknown, AccessSource::kParameters};
      const uint64_t how = in.U();
      if (how >> 2 >= kAccessSources) return absl::StrCat("access source ", how >> 2);
      range.access = static_cast<Access>(how & 3);
      if (std::string error = WrongRange(range.address, range.bytes); !error.empty()) return error;
      range.source = static_cast<AccessSource>(how >> 2);
      accesses.push_back(range);
    }
    return {};
  }

  std::string ReadGraphLaunch(Cursor& in, Event& event) {
    event.a = in.U(), event.b = in.U(), event.c = trace_.graph_launches.size();
    GraphLaunch launch;
    launch.has_nodes = !in.ended();
    for (uint64_t i = launch.has_nodes ? in.Count(1) : 0; i > 0; --i) {
      if (std::string error = ReadAccesses(in, launch.nodes.emplace_back()); !error.empty()) return error;
    }
    trace_.graph_launches.push_back(std::move(launch));
    return {};
  }

  std::string ReadLaunch(Cursor& in, Event& event) {
    Launch launch;
    launch.function = in.U32();
    launch.stream = in.U();
    for (uint32_t& n : launch.grid) n = in.U32();
    for (uint32_t& n : launch.block) n = in.U32();
    launch.shared_bytes = in.U32();
    launch.flags = in.U32();
    const uint64_t words = in.Count(1);
    if (words > kMaxWords) return absl::StrCat(words, " parameter words; at most ", kMaxWords);
    launch.words.reserve(words);
    for (uint64_t i = 0; i < words; ++i) launch.words.push_back(in.U());
    if (std::string error = ReadAccesses(in, launch.accesses); !error.empty()) return error;
    if (in.bad()) return Ended(in);
    if (launch.function >= trace_.functions.size()) {
      return absl::StrCat("function ", launch.function, " is not defined (", trace_.functions.size(), " are)");
    }
    event.a = trace_.launches.size();
    trace_.launches.push_back(std::move(launch));
    return {};
  }

  // A record about an earlier launch: its duration or ranges.
  std::string ReadLaunchColumn(Type type, Cursor& in) {
    const uint64_t at = in.U();
    if (in.bad()) return Ended(in);
    if (at >= trace_.launches.size()) {
      return absl::StrCat("names launch ", at, ", but only ", trace_.launches.size(), " precede it");
    }
    Launch& launch = trace_.launches[at];
    if (type == Type::kDuration) {
      launch.duration_ns = in.U();
      return Ended(in);
    }
    std::vector<Range>& ranges = type == Type::kTruth     ? launch.truth
                                 : type == Type::kGuessed ? launch.guessed
                                                          : launch.changed;
    (type == Type::kChanged ? launch.has_changed : launch.has_truth) = true;
    const uint64_t count = in.Count(2);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t address = in.U(), bytes = in.U();
      if (std::string error = WrongRange(address, bytes); !error.empty()) return error;
      ranges.push_back({address, bytes});
    }
    for (uint64_t i = 0; i < count && !in.ended(); ++i) {
      const uint64_t access = in.U();
      if (access > static_cast<uint64_t>(Access::kReadWrite)) return absl::StrCat("access ", access);
      ranges[ranges.size() - count + i].access = static_cast<Access>(access);
    }
    return Ended(in);
  }

  Trace& trace_;
  uint64_t time_ = 0, records_ = 0;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::string error;
  std::optional<std::string> bytes = ReadWholeFile(path, error, kMaxUnpackedBytes);
  if (!bytes) return absl::NotFoundError(error);
  return *std::move(bytes);
}

absl::Status Wrong(const std::string& name, size_t at, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": byte ", at, ": ", what));
}

// An error's text for bytes that do not begin like a trace, else empty.
std::string WrongBeginning(std::string_view bytes) {
  if (bytes.size() >= kHeaderBytes && memcmp(bytes.data(), kMagic, sizeof kMagic) == 0) return {};
  return "not a sluice trace (it begins with other bytes than \"SLTRACE\")";
}

}  // namespace

absl::StatusOr<Trace> Parse(std::string_view bytes, const std::string& name) {
  std::string unpacked;
  if (IsPacked(bytes)) {
    absl::StatusOr<std::string> out = Unpack(bytes, name);
    if (!out.ok()) return out.status();
    unpacked = *std::move(out);
    bytes = unpacked;
  }
  const auto wrong = [&name](size_t at, const std::string& what) { return Wrong(name, at, what); };
  if (const std::string what = WrongBeginning(bytes); !what.empty()) return wrong(0, what);
  uint32_t head[2];
  memcpy(head, bytes.data() + sizeof kMagic, sizeof head);
  if (head[0] != kVersion) {
    return wrong(sizeof kMagic, absl::StrCat("trace version ", head[0], "; this sluice reads version ", kVersion));
  }
  Trace trace;
  trace.flags = head[1];
  Parser parser(trace);
  size_t at = kHeaderBytes;
  while (at < bytes.size()) {
    if (trace.complete) return wrong(at, "records after the end record");
    const size_t begin = at;
    const auto type = static_cast<Type>(bytes[at++]);
    uint64_t length = 0;
    int shift = 0;
    bool ended = false;
    while (at < bytes.size() && !ended && shift < 42) {
      const auto b = static_cast<uint8_t>(bytes[at++]);
      length |= static_cast<uint64_t>(b & 0x7f) << shift;
      shift += 7;
      ended = b < 0x80;
    }
    if (!ended && at < bytes.size()) return wrong(begin, "a record's length has more than six bytes");
    if (!ended || length > bytes.size() - at) break;  // cut off in mid-record
    if (static_cast<uint8_t>(type) == 0) return wrong(begin, "record type 0 does not exist");
    const std::string error = parser.Record(type, bytes.substr(at, length));
    if (!error.empty()) return wrong(begin, absl::StrCat(TypeName(type), ": ", error));
    parser.CountRecord();
    at += length;
  }
  return trace;
}

absl::StatusOr<Trace> Load(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  return Parse(*bytes, path);
}

absl::Status Compress(const std::string& from, const std::string& to, int level) {
  absl::StatusOr<std::string> bytes = ReadFile(from);
  if (!bytes.ok()) return bytes.status();
  if (IsPacked(*bytes)) bytes = Unpack(*bytes, from);
  if (!bytes.ok()) return bytes.status();
  if (const std::string what = WrongBeginning(*bytes); !what.empty()) return Wrong(from, 0, what);
  if (std::string error; !MayBeReplaced(to, error)) return absl::InvalidArgumentError(error);
  const absl::StatusOr<std::string> packed = Pack(*bytes, from, level);
  if (!packed.ok()) return packed.status();
  const std::string temporary = to + ".part";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out.write(packed->data(), static_cast<std::streamsize>(packed->size()));
  out.close();
  if (!out || rename(temporary.c_str(), to.c_str()) != 0) {
    const absl::Status status = absl::UnavailableError(absl::StrCat(to, ": ", strerror(errno)));
    remove(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

LiveBytes PeakLive(const Trace& trace) {
  std::unordered_map<uint64_t, uint64_t> blocks;
  uint64_t allocated = 0;
  int64_t reported = 0;
  LiveBytes peak;
  for (const Event& event : trace.events) {
    if (event.type == Type::kAlloc && event.c != static_cast<uint64_t>(AllocKind::kHost)) {
      blocks[event.a] = event.b;
      allocated += event.b;
    } else if (event.type == Type::kFree) {
      const auto it = blocks.find(event.a);
      if (it != blocks.end()) {
        allocated -= it->second;
        blocks.erase(it);
      }
    } else if (event.type == Type::kReport) {
      reported += static_cast<int64_t>(event.b);
    }
    peak.allocated_peak = std::max(peak.allocated_peak, allocated);
    peak.reported_peak = std::max(peak.reported_peak, static_cast<uint64_t>(std::max<int64_t>(reported, 0)));
  }
  return peak;
}

const char* TypeName(Type type) {
  static constexpr const char* kNames[] = {
      "?",           "meta",        "alloc",         "free",        "report",       "function",     "launch",
      "copy",        "set",         "stream-create", "stream-end",  "event-record", "stream-wait",  "event-sync",
      "stream-sync", "device-sync", "capture",       "capture-end", "graph-make",   "graph-launch", "step",
      "duration",    "truth",       "end",           "guessed",     "changed",      "working-set"};
  const auto i = static_cast<size_t>(type);
  return i < std::size(kNames) ? kNames[i] : "unknown record";
}

}  // namespace sluice::trace
