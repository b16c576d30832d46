#include "interval.h"

namespace sluice::trace {

std::vector<uint64_t> Intervals(const Trace& trace, std::string_view kernel, std::string_view between) {
  std::vector<uint64_t> all;
  int step = -1;
  uint64_t last = 0;
  bool begun = false, holds = false;
  for (const Event& event : trace.events) {
    switch (event.type) {
      case Type::kStep:
        ++step;
        [[fallthrough]];
      case Type::kDeviceSync:
      case Type::kStreamSync:
      case Type::kEventSync:
        begun = false;
        break;
      case Type::kLaunch: {
        const std::string_view name = trace.functions[trace.launches[event.a].function].name;
        if (name.find(kernel) != std::string_view::npos) {
          if (begun && holds && step > 0) all.push_back(event.time_ns - last);
          last = event.time_ns;
          begun = true;
          holds = false;
        } else if (name.find(between) != std::string_view::npos) {
          holds = true;
        }
        break;
      }
      case Type::kCopy:
        if ((event.e & kCopySync) != 0) begun = false;
        break;
      default:
        break;
    }
  }
  return all;
}

}  // namespace sluice::trace
