#include "timeline.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace simgpu {
namespace {

std::string Quote(const std::string& s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 32) out += c;
  }
  return out + "\"";
}

}  // namespace

Timeline::Timeline() {
  const char* path = std::getenv("SIMGPU_TIMELINE");
  if (path == nullptr || *path == '\0') return;
  on_ = true;
  path_ = path;
  // Several processes of one run write a file each: %p is the process' id.
  const auto at = path_.find("%p");
  if (at != std::string::npos) path_.replace(at, 2, std::to_string(getpid()));
}

void Timeline::Span(int card, const std::string& track, const std::string& name, int64_t begin, int64_t end,
                    uint64_t bytes) {
  if (on_ && entries_.size() < limit_) entries_.push_back({'X', card, track, name, begin, end, bytes});
}

void Timeline::Counter(int card, const char* name, int64_t time, uint64_t value) {
  if (on_ && entries_.size() < limit_) entries_.push_back({'C', card, "", name, time, time, value});
}

void Timeline::Mark(const std::string& name, int64_t time) {
  if (on_ && entries_.size() < limit_) entries_.push_back({'i', 0, "", name, time, time, 0});
}

void Timeline::Write() {
  if (!on_) return;
  on_ = false;
  FILE* out = std::fopen(path_.c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "simgpu: SIMGPU_TIMELINE=%s cannot be written\n", path_.c_str());
    return;
  }
  const int pid = getpid();
  std::map<std::string, int> tracks;
  std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", out);
  std::fprintf(out, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"process %d\"}}", pid, pid);
  for (const Entry& e : entries_) {
    const double us = static_cast<double>(e.begin) / 1000, length = static_cast<double>(e.end - e.begin) / 1000;
    if (e.phase == 'X') {
      const std::string track = "card " + std::to_string(e.card) + " " + e.track;
      auto [it, fresh] = tracks.emplace(track, static_cast<int>(tracks.size()) + 1);
      if (fresh) {
        std::fprintf(out, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":%s}}",
                     pid, it->second, Quote(track).c_str());
      }
      std::fprintf(
          out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":%s,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"bytes\":%llu}}",
          pid, it->second, Quote(e.name).c_str(), us, length, static_cast<unsigned long long>(e.value));
    } else if (e.phase == 'C') {
      std::fprintf(out, ",\n{\"ph\":\"C\",\"pid\":%d,\"name\":\"card %d %s\",\"ts\":%.3f,\"args\":{\"bytes\":%llu}}",
                   pid, e.card, e.name.c_str(), us, static_cast<unsigned long long>(e.value));
    } else {
      std::fprintf(out, ",\n{\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"name\":%s,\"ts\":%.3f}", pid, Quote(e.name).c_str(),
                   us);
    }
  }
  std::fputs("\n]}\n", out);
  if (std::fclose(out) != 0) std::fprintf(stderr, "simgpu: SIMGPU_TIMELINE=%s: write failed\n", path_.c_str());
}

}  // namespace simgpu
