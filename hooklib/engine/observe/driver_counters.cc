#include "hooklib/engine/observe/driver_counters.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace sluice {

namespace {
constexpr size_t kPageBytes = 4096;
}  // namespace

DriverCounts::~DriverCounts() {
  device_.Close();
  if (page_) munmap(page_, kPageBytes);
}

bool DriverCounts::Open(const unsigned char* uuid) {
  if (std::exchange(tried_, true)) return counting();
  void* const page = uvm_tools::SharedPages(kPageBytes);
  if (!page) {
    why_ = "no memory for its page";
    return false;
  }
  uvm_tools::InitArguments what{};
  what.page = reinterpret_cast<uint64_t>(page);
  device_ = client::Descriptor(uvm_tools::Open(kernel_, uvm_tools::kInit, what, uuid, &why_));
  constexpr uint64_t kBits = uint64_t{1} << kToCard | uint64_t{1} << kToHost | uint64_t{1} << kFaults;
  if (uvm_tools::Set(kernel_, device_, uvm_tools::kEnableCounters, kBits)) {
    page_ = static_cast<uint64_t*>(page);
    return true;
  }
  if (device_.fd() >= 0) {
    why_ = "it does not count";
    device_.Close();  // nothing is written to the page from here on
  }
  munmap(page, kPageBytes);
  return false;
}

}  // namespace sluice
