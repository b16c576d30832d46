// Virtual memory management: reserved addresses, physical memory, mappings.
#include <algorithm>
#include <climits>

#include "../core/misuse.h"
#include "ipc.h"

using simgpu::Allocation;
using simgpu::MemoryKind;
using simgpu::Sim;

namespace {

// A piece of physical memory (cuMemCreate). It can be mapped several times, and is freed with its last reference.
struct PhysicalHandle {
  uint32_t magic = 0x50480001;
  int handles = 1;   // references that the program holds, to be released
  int mappings = 0;  // and these keep it too
  uint64_t size = 0;
  int card = -1;             // -1: host
  bool is_imported = false;  // another process' memory
  CUmemAllocationProp props{};
  std::shared_ptr<simgpu::ContentMap> content;  // its mappings share it
};

struct Reservation {
  uint64_t size;
};
std::map<uint64_t, Reservation>& Reservations() {
  static auto* all = new std::map<uint64_t, Reservation>;
  return *all;
}
// Addresses that small reservations have got. The driver gives them no others, whatever the hint (an H100, driver 580).
std::set<uint64_t>& SmallPlaces() {
  static auto* all = new std::set<uint64_t>;
  return *all;
}
std::set<PhysicalHandle*>& Handles() {
  static auto* all = new std::set<PhysicalHandle*>;
  return *all;
}

// Rights to mappings, by their base and the device; none where there is no entry.
std::map<std::pair<uint64_t, int>, unsigned long long>& Access() {
  static auto* all = new std::map<std::pair<uint64_t, int>, unsigned long long>;
  return *all;
}

// The handle that a caller names; null: none. The driver takes a handle for an address: it crashes with another value
// (H100, driver 580).
PhysicalHandle* Named(CUmemGenericAllocationHandle handle) {
  constexpr int kAddressBits = 47;
  if ((handle >> kAddressBits) != 0) simgpu::Misuse("a VMM handle is no value that a driver gave");
  auto* h = reinterpret_cast<PhysicalHandle*>(handle);
  return Handles().count(h) != 0 ? h : nullptr;
}

void DeleteIfUnused(PhysicalHandle* h) {
  if (h->handles > 0 || h->mappings > 0) return;
  if (h->card >= 0 && !h->is_imported) Sim().GiveUnmanaged(h->card, h->size);
  Handles().erase(h);
  delete h;
}

}  // namespace

bool simgpu::FindReservation(uint64_t address, uint64_t* base, uint64_t* size) {
  auto it = Reservations().upper_bound(address);
  if (it == Reservations().begin()) return false;
  --it;
  if (address - it->first >= it->second.size) return false;
  *base = it->first;
  *size = it->second.size;
  return true;
}

bool simgpu::IsAccessible(uint64_t address, uint64_t length) {
  for (uint64_t at = address; at < address + length;) {
    const Allocation* a = FindAllocation(at);
    if (a == nullptr) return false;
    if (a->kind != MemoryKind::kMapped) return true;
    const auto right = Access().lower_bound({a->base, INT_MIN});
    if (right == Access().end() || right->first.first != a->base) return false;
    at = a->base + a->size;
  }
  return true;
}

const CUmemAllocationProp& simgpu::MappedProperties(const Allocation& a) {
  return static_cast<PhysicalHandle*>(a.owner)->props;
}

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags) {
  BEGIN(100);
  NEED_ARG(out != nullptr && prop != nullptr && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED);
  *out = simgpu::kBlockBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  BEGIN(Sim().profile().vmm_map_ns / 4);
  NEED_ARG(out != nullptr && size != 0 && size % simgpu::kBlockBytes == 0 && flags == 0);
  // A hint that cannot be followed is no error.
  constexpr uint64_t kSmallBytes = uint64_t{26} << 20;
  const bool may_be_there =
      hint != 0 && hint % simgpu::kBlockBytes == 0 && (size >= kSmallBytes || SmallPlaces().count(hint) != 0);
  const bool is_there = may_be_there && Sim().memory().ReserveAt(hint, size);
  const auto elsewhere = [&] { return Sim().memory().Reserve(size, std::max<size_t>(alignment, simgpu::kBlockBytes)); };
  uint64_t address = is_there ? hint : elsewhere();
  if (!is_there && address == hint && address != 0) {
    address = elsewhere();
    Sim().memory().Unreserve(hint, size);
  }
  NEED(address != 0, CUDA_ERROR_OUT_OF_MEMORY);
  if (size < kSmallBytes) SmallPlaces().insert(address);
  Reservations()[address] = {size};
  *out = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t size) {
  BEGIN(Sim().profile().vmm_map_ns / 4);
  auto it = Reservations().find(p);
  NEED_ARG(it != Reservations().end() && it->second.size == size);
  for (uint64_t at = p; at < p + size; at += simgpu::kBlockBytes) NEED_ARG(simgpu::FindAllocation(at) == nullptr);
  Reservations().erase(it);
  Sim().memory().Unreserve(p, size);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t size, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  NEED_ARG(out != nullptr && prop != nullptr && size != 0 && size % simgpu::kBlockBytes == 0 && flags == 0);
  const bool host = prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  BEGIN(host ? static_cast<int64_t>(size >> 20) * simgpu::TheProfile().vmm_create_host_ns_per_mib
             : simgpu::TheProfile().vmm_create_ns);
  NEED_ARG(prop->type == CU_MEM_ALLOCATION_TYPE_PINNED);
  int card = -1;
  if (!host) {
    NEED(simgpu::CardOf(prop->location.id, &card), CUDA_ERROR_INVALID_DEVICE);
    NEED(Sim().TakeUnmanaged(card, size), CUDA_ERROR_OUT_OF_MEMORY);
  }
  auto* h = new PhysicalHandle;
  h->size = size;
  h->card = card;
  h->props = *prop;
  h->content = std::make_shared<simgpu::ContentMap>(size);
  Handles().insert(h);
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(h);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  BEGIN(Sim().profile().vmm_map_ns / 4);
  auto* h = Named(handle);
  NEED_ARG(h != nullptr && h->handles > 0);
  --h->handles;
  DeleteIfUnused(h);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  BEGIN(Sim().profile().vmm_map_ns);
  auto* h = Named(handle);
  NEED_ARG(h != nullptr && flags == 0 && size != 0);
  NEED(offset == 0 && size == h->size, CUDA_ERROR_NOT_SUPPORTED);  // a handle is mapped as a whole: H100, driver 580
  NEED_ARG(p % simgpu::kBlockBytes == 0);
  auto it = Reservations().upper_bound(p);
  NEED_ARG(it != Reservations().begin());
  --it;
  NEED_ARG(p + size <= it->first + it->second.size);
  for (uint64_t at = p; at < p + size; at += simgpu::kBlockBytes) NEED_ARG(simgpu::FindAllocation(at) == nullptr);
  Allocation* a = Sim().memory().Add(p, size, MemoryKind::kMapped, std::max(h->card, 0));
  a->host_located = h->card < 0;
  a->owner = h;
  a->content = h->content;
  ++h->mappings;
  return CUDA_SUCCESS;
}

// Addresses without a mapping may lie between mappings, which are ended as wholes (H100, driver 580).
CUresult cuMemUnmap(CUdeviceptr p, size_t size) {
  BEGIN(Sim().profile().vmm_map_ns);
  Sim().CatchUp(call.lock);
  uint64_t base = 0, reserved = 0;
  NEED_ARG(size != 0 && p % simgpu::kBlockBytes == 0 && size % simgpu::kBlockBytes == 0);
  NEED_ARG(simgpu::FindReservation(p, &base, &reserved) && size <= base + reserved - p);
  std::vector<Allocation*> mapped;
  for (uint64_t at = p; at < p + size;) {
    Allocation* a = simgpu::FindAllocation(at);
    NEED_ARG(a == nullptr || (a->kind == MemoryKind::kMapped && a->base == at && at + a->size <= p + size));
    if (a != nullptr) mapped.push_back(a);
    at += a != nullptr ? a->size : simgpu::kBlockBytes;
  }
  for (Allocation* const a : mapped) {
    const uint64_t at = a->base, next = at + a->size;
    Access().erase(Access().lower_bound({at, INT_MIN}), Access().lower_bound({next, INT_MIN}));
    auto* h = static_cast<PhysicalHandle*>(a->owner);
    // Contents do not tell through which of several mappings they are in use.
    if (--h->mappings == 0) Sim().CheckIdle(at, a->size, simgpu::SeenTime(), "unmapped");
    Sim().memory().NoteFreed(*a, Sim().operations());
    {
      simgpu::SharedState::Lock lock(Sim().state());
      Sim().memory().Remove(a);
    }
    DeleteIfUnused(h);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc* desc, size_t count) {
  BEGIN(Sim().profile().vmm_map_ns);
  NEED_ARG(desc != nullptr && count != 0 && size != 0 && Sim().Mapped(p, size));
  // The range consists of whole mappings, by the driver's manual.
  const Allocation* first = simgpu::FindAllocation(p);
  const Allocation* last = simgpu::FindAllocation(p + size - 1);
  NEED_ARG(first->base == p && last->base + last->size == p + size);
  for (uint64_t at = p; at < p + size; at += simgpu::FindAllocation(at)->size) {
    for (size_t i = 0; i < count; ++i) Access()[{at, desc[i].location.id}] = desc[i].flags;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr p) {
  BEGIN(100);
  NEED_ARG(flags != nullptr && location != nullptr && simgpu::FindAllocation(p) != nullptr);
  const auto it = Access().find({simgpu::FindAllocation(p)->base, location->id});
  *flags = 0;
  if (it != Access().end()) *flags = it->second;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  BEGIN(100);
  auto* h = Named(handle);
  NEED_ARG(prop != nullptr && h != nullptr && h->handles > 0);
  *prop = h->props;
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* p) {
  BEGIN(100);
  Allocation* a = simgpu::FindAllocation(reinterpret_cast<CUdeviceptr>(p));
  NEED_ARG(out != nullptr && a != nullptr && a->kind == MemoryKind::kMapped);
  auto* h = static_cast<PhysicalHandle*>(a->owner);
  ++h->handles;
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(h);
  return CUDA_SUCCESS;
}

// Another process imports the memory by a file, with the contents of now.
CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  BEGIN(5000);
  auto* h = Named(handle);
  NEED_ARG(out != nullptr && h != nullptr && h->handles > 0 && flags == 0);
  NEED_ARG(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && (h->props.requestedHandleTypes & type) != 0);
  Sim().CatchUp(call.lock);
  const int file = simgpu::SaveContents(*h->content, h->size, h->card);
  NEED(file >= 0, CUDA_ERROR_OUT_OF_MEMORY);
  *static_cast<int*>(out) = file;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* handle,
                                        CUmemAllocationHandleType type) {
  BEGIN_UNSAFE(5000);
  NEED_ARG(out != nullptr && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  auto* h = new PhysicalHandle;
  h->content = std::make_shared<simgpu::ContentMap>(0);
  if (!simgpu::LoadContents(static_cast<int>(reinterpret_cast<intptr_t>(handle)), h->content.get(), &h->size,
                            &h->card)) {
    delete h;
    return CUDA_ERROR_INVALID_VALUE;
  }
  h->is_imported = true;
  h->props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  h->props.location = {CU_MEM_LOCATION_TYPE_DEVICE, std::max(h->card, 0)};
  h->props.requestedHandleTypes = type;
  Handles().insert(h);
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(h);
  return CUDA_SUCCESS;
}

}  // extern "C"
