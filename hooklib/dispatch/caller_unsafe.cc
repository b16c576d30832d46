#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>

#include "hooklib/dispatch/caller.h"

namespace sluice {
namespace {

// Libraries that share their buffers by handle or RDMA, which managed memory does not allow.
constexpr const char* kUnmanagedLibraries[] = {"libnccl.", "libnccl-", "libnvshmem", "libuct", "libcufile"};

// Memory that these make by cuMemAlloc is like any other.
constexpr const char* kVmmExporters[] = {"libtorch_cuda.", "libtorch_nvshmem."};

constexpr int kMaxRanges = 64;
struct Snapshot {
  unsigned long long loads = 0;  // dlpi_adds + dlpi_subs at its time
  int count = 0;
  struct Range {
    std::uintptr_t begin, end;
    bool is_vmm_exporter;
  } ranges[kMaxRanges];
};

// Old snapshots are never freed: another thread may still read one, and there is one for each load of a library.
std::atomic<const Snapshot*> current{nullptr};

template <std::size_t kCount>
bool IsOneOf(const char* path, const char* const (&prefixes)[kCount]) {
  const char* const slash = std::strrchr(path, '/');
  const char* const name = slash != nullptr ? slash + 1 : path;
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](const char* prefix) { return std::strncmp(name, prefix, std::strlen(prefix)) == 0; });
}

int FirstObject(dl_phdr_info* info, std::size_t, void* loads) {
  *static_cast<unsigned long long*>(loads) = info->dlpi_adds + info->dlpi_subs;
  return 1;
}

int AddObject(dl_phdr_info* info, std::size_t, void* data) {
  auto& snapshot = *static_cast<Snapshot*>(data);
  snapshot.loads = info->dlpi_adds + info->dlpi_subs;
  if (info->dlpi_name == nullptr) return 0;
  const bool is_vmm_exporter = IsOneOf(info->dlpi_name, kVmmExporters);
  if (!is_vmm_exporter && !IsOneOf(info->dlpi_name, kUnmanagedLibraries)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0 || snapshot.count == kMaxRanges) continue;
    const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    snapshot.ranges[snapshot.count++] = {begin, begin + segment.p_memsz, is_vmm_exporter};
  }
  return 0;
}

bool CalledFrom(bool vmm_exporter, const void* return_address) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): addresses are compared, not followed.
  const auto address = reinterpret_cast<std::uintptr_t>(return_address);
  unsigned long long loads = 0;
  dl_iterate_phdr(&FirstObject, &loads);
  const Snapshot* snapshot = current.load(std::memory_order_acquire);
  if (snapshot == nullptr || snapshot->loads != loads) {
    auto* const fresh = new (std::nothrow) Snapshot;
    if (fresh == nullptr) return false;
    dl_iterate_phdr(&AddObject, fresh);
    snapshot = fresh;
    current.store(fresh, std::memory_order_release);
  }
  return std::any_of(snapshot->ranges, snapshot->ranges + snapshot->count, [&](const auto& range) {
    return range.is_vmm_exporter == vmm_exporter && address >= range.begin && address < range.end;
  });
}

}  // namespace

bool CalledFromUnmanagedLibrary(const void* return_address) { return CalledFrom(false, return_address); }
bool CalledFromVmmExporter(const void* return_address) { return CalledFrom(true, return_address); }

}  // namespace sluice
