// Chrome trace JSON (opens in Perfetto): launches, stalls, transfers, resident bytes. Off unless SIMGPU_TIMELINE is
// set.
#ifndef SIMGPU_CORE_TIMELINE_H_
#define SIMGPU_CORE_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace simgpu {

class Timeline {
 public:
  Timeline();
  bool on() const { return on_; }
  // [begin, end) in ns on a track of a card; tracks: "stream N", "link in", ...
  void Span(int card, const std::string& track, const std::string& name, int64_t begin, int64_t end, uint64_t bytes);
  void Counter(int card, const char* name, int64_t time, uint64_t value);
  void Mark(const std::string& name, int64_t time);
  void Write();

 private:
  struct Entry {
    char phase;
    int card;
    std::string track, name;
    int64_t begin, end;
    uint64_t value;
  };
  bool on_ = false;
  std::string path_;
  size_t limit_ = 2000000;
  std::vector<Entry> entries_;
};

}  // namespace simgpu

#endif  // SIMGPU_CORE_TIMELINE_H_
