#include <dlfcn.h>

#include <algorithm>
#include <cctype>

#include "common/nvml/library.h"

namespace sluice::nvml {
namespace {

constexpr size_t kBusIdBytes = 12;  // "0000:65:00.0"

template <typename F>
bool Find(void* handle, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(handle, name));
  return *out != nullptr;
}

}  // namespace

LoadResult Load(const std::string& name, Library* out, std::string* error) {
  Library library;
  library.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    const char* why = dlerror();
    *error = "NVML: no NVIDIA driver library: " + (why == nullptr ? name : why);
    return LoadResult::kNoLibrary;
  }
  bool is_whole = true;
#define SLUICE_NVML_REQUIRE(member, exported) is_whole &= Find(library.handle, #exported, &library.member);
#define SLUICE_NVML_FIND(member, exported) Find(library.handle, #exported, &library.member);
  SLUICE_NVML_FUNCTIONS(SLUICE_NVML_REQUIRE, SLUICE_NVML_FIND)
#undef SLUICE_NVML_REQUIRE
#undef SLUICE_NVML_FIND
  const nvmlReturn_t started = is_whole ? library.init() : NVML_SUCCESS;
  if (is_whole && started == NVML_SUCCESS) {
    *out = library;
    return LoadResult::kStarted;
  }
  *error = "NVML: '" + name + "' " +
           (is_whole ? std::string("does not start: ") + library.error_string(started)
                     : "lacks functions that every driver since 450 has");
  dlclose(library.handle);
  return is_whole ? LoadResult::kDoesNotStart : LoadResult::kLacksFunctions;
}

std::string PciBusId(const Library& library, nvmlDevice_t device) {
  nvmlPciInfo_t pci = {};
  if (library.pci == nullptr || library.pci(device, &pci) != NVML_SUCCESS) return "";
  // NVML's domain has eight digits, and its letters are capitals.
  std::string bus = pci.busId;
  if (bus.size() > kBusIdBytes) bus = bus.substr(bus.size() - kBusIdBytes);
  std::ranges::transform(bus, bus.begin(), [](unsigned char c) { return std::tolower(c); });
  return bus;
}

}  // namespace sluice::nvml
