#include "hooklib/engine/observe/driver_counters.h"

#include <sys/mman.h>

#include <utility>

namespace sluice {

namespace {
constexpr size_t kPageBytes = 4096;
}  // namespace

DriverCounters::~DriverCounters() {
  tracker_.Close();
  if (page_) munmap(page_, kPageBytes);
}

bool DriverCounters::Open(const unsigned char* uuid) {
  if (std::exchange(tried_, true)) return counting();
  void* const page = uvm_tools::SharedPages(kPageBytes);
  if (!page) {
    why_ = "no memory for its page";
    return false;
  }
  uvm_tools::InitArguments arguments{};
  arguments.page = reinterpret_cast<uint64_t>(page);
  tracker_ = client::Descriptor(uvm_tools::Open(port_, uvm_tools::kInit, arguments, uuid, &why_));
  constexpr uint64_t kBits = uint64_t{1} << kToDevice | uint64_t{1} << kToHost | uint64_t{1} << kFaults;
  if (uvm_tools::SetFlags(port_, tracker_, uvm_tools::kEnableCounters, kBits)) {
    page_ = static_cast<uint64_t*>(page);
    return true;
  }
  if (tracker_.fd() >= 0) {
    why_ = "it does not count";
    tracker_.Close();  // nothing is written to the page from here on
  }
  munmap(page, kPageBytes);
  return false;
}

}  // namespace sluice
