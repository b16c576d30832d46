// VMM memory of generated programs: reserved, mapped, mapped anew, unmapped.
#include <map>
#include <mutex>

#include "machine.h"
#include "try.h"

namespace differential {
namespace {

CUmemAllocationProp Properties(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

constexpr size_t kNeighbor = size_t{2} << 20;

struct MappedBlock {
  CUdeviceptr reserved;
  size_t bytes;
  bool has_neighbor;
  CUmemGenericAllocationHandle kept;  // 0: released
};
std::mutex g_mapped_mutex;
std::map<CUdeviceptr, MappedBlock>& MappedBlocks() {
  static auto& all = *new std::map<CUdeviceptr, MappedBlock>;
  return all;
}

CUresult MapAt(CUdeviceptr at, size_t bytes, int device, CUmemGenericAllocationHandle handle) {
  TRY(cuMemMap(at, bytes, 0, handle, 0));
  const CUmemAccessDesc access{Properties(device).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return cuMemSetAccess(at, bytes, &access, 1);
}
CUresult MapNeighbor(CUdeviceptr at, int device) {
  const CUmemAllocationProp prop = Properties(device);
  CUmemGenericAllocationHandle handle = 0;
  TRY(cuMemCreate(&handle, kNeighbor, &prop, 0));
  TRY(MapAt(at, kNeighbor, device, handle));
  return cuMemRelease(handle);
}

}  // namespace

CUresult Map(CUdeviceptr* out, size_t bytes, int device, int form) {
  CUmemAllocationProp prop = Properties(device);
  if ((form & 16) != 0) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t granularity = 0;
  TRY(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  Record("granularity %zu", granularity);
  MappedBlock block{0, bytes + 2 * kNeighbor, (form & 2) != 0, 0};
  if ((form & 1) != 0) TRY(cuMemCreate(&block.kept, bytes, &prop, 0));
  TRY(cuMemAddressReserve(&block.reserved, block.bytes, 0, 0, 0));
  if ((form & 1) == 0) TRY(cuMemCreate(&block.kept, bytes, &prop, 0));
  *out = block.reserved + kNeighbor;
  if ((form & 2) != 0) TRY(MapNeighbor(block.reserved, device));
  if ((form & 4) != 0) TRY(MapNeighbor(*out + bytes, device));
  TRY(MapAt(*out, bytes, device, block.kept));
  if ((form & 4) != 0) TRY(cuMemUnmap(*out + bytes, kNeighbor));
  if ((form & 8) == 0) {
    TRY(cuMemRelease(block.kept));
    block.kept = 0;
  }
  CUdeviceptr base = 0;
  size_t range = 0;
  TRY(cuMemGetAddressRange(&base, &range, *out + 100));
  Record("range %d %zu", base == *out, range);
  const std::lock_guard lock(g_mapped_mutex);
  MappedBlocks()[*out] = block;
  return CUDA_SUCCESS;
}
CUresult Remap(CUdeviceptr at, size_t bytes, int device, bool elsewhere) {
  CUmemGenericAllocationHandle handle = 0;
  TRY(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(at)));
  TRY(cuMemUnmap(at, bytes));
  if (elsewhere) {
    CUdeviceptr other = 0;
    TRY(cuMemAddressReserve(&other, bytes, 0, 0, 0));
    TRY(MapAt(other, bytes, device, handle));
    TRY(cuMemUnmap(other, bytes));
    TRY(cuMemAddressFree(other, bytes));
  }
  TRY(MapAt(at, bytes, device, handle));
  return cuMemRelease(handle);
}
CUresult Unmap(CUdeviceptr at, size_t bytes) {
  MappedBlock block{};
  {
    const std::lock_guard lock(g_mapped_mutex);
    block = MappedBlocks()[at];
    MappedBlocks().erase(at);
  }
  const CUdeviceptr from = block.has_neighbor ? block.reserved : at;
  TRY(cuMemUnmap(from, at + bytes - from));
  if (block.kept != 0) TRY(cuMemRelease(block.kept));
  return cuMemAddressFree(block.reserved, block.bytes);
}

CUresult MapHandle(CUdeviceptr* out, size_t bytes, int device, CUmemGenericAllocationHandle handle) {
  TRY(cuMemAddressReserve(out, bytes, 0, 0, 0));
  return MapAt(*out, bytes, device, handle);
}
void KeepMapping(CUdeviceptr at, size_t bytes) {
  const std::lock_guard lock(g_mapped_mutex);
  MappedBlocks()[at] = {at, bytes, false, 0};
}

}  // namespace differential
