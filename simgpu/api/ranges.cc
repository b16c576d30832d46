// Queries about ranges of managed memory: what calls said about them.
#include "call.h"

using simgpu::Allocation;
using simgpu::MemoryKind;
using simgpu::Sim;

namespace {

// Calls use(block) for each block of the range. False: not all of it is managed memory.
template <class Use>
bool ForEachBlock(CUdeviceptr p, size_t n, Use use) {
  if (n == 0) return false;
  for (uint64_t at = p; at < p + n;) {
    Allocation* a = simgpu::FindAllocation(at);
    if (a == nullptr || a->kind != MemoryKind::kManaged) return false;
    const simgpu::BlockPart part = Sim().memory().PartAt(a, at, p + n);
    use(*part.block);
    at = part.address + part.block_bytes;
  }
  return true;
}

constexpr int kNone = -2;

// What all blocks of the range have in common.
struct Common {
  bool is_first = true, read_mostly = true, by_host = true;
  int preferred = kNone, last_prefetch = kNone;
  uint16_t accessed_by = 0xFFFF;

  void Add(const simgpu::Block& b) {
    read_mostly &= b.read_mostly;
    by_host &= b.accessed_by_host;
    accessed_by &= b.accessed_by;
    preferred = is_first || preferred == b.preferred ? b.preferred : kNone;
    last_prefetch = is_first || last_prefetch == b.last_prefetch ? b.last_prefetch : kNone;
    is_first = false;
  }
};

int OldName(int card) { return card >= 0 ? simgpu::DeviceOf(card) : card == -1 ? CU_DEVICE_CPU : CU_DEVICE_INVALID; }
int TypeOf(int card) {
  return card >= 0    ? CU_MEM_LOCATION_TYPE_DEVICE
         : card == -1 ? CU_MEM_LOCATION_TYPE_HOST
                      : CU_MEM_LOCATION_TYPE_INVALID;
}
int IdOf(int card) { return card >= 0 ? simgpu::DeviceOf(card) : 0; }

CUresult Answer(const Common& all, void* data, size_t size, CUmem_range_attribute attribute) {
  NEED_ARG(data != nullptr && size != 0 && size % sizeof(int) == 0);
  auto* out = static_cast<int*>(data);
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    const size_t room = size / sizeof(int);
    size_t written = 0;
    if (all.by_host) out[written++] = CU_DEVICE_CPU;
    for (int card = 0; card < 16 && written < room; ++card) {
      if ((all.accessed_by >> card & 1) != 0) out[written++] = simgpu::DeviceOf(card);
    }
    while (written < room) out[written++] = CU_DEVICE_INVALID;
    return CUDA_SUCCESS;
  }
  NEED_ARG(size == sizeof(int));
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *out = all.read_mostly;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *out = OldName(all.preferred);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *out = OldName(all.last_prefetch);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *out = TypeOf(all.preferred);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *out = IdOf(all.preferred);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *out = TypeOf(all.last_prefetch);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *out = IdOf(all.last_prefetch);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

void simgpu::NotePrefetch(const PrefetchRange& range) {
  ForEachBlock(range.address, range.length, [&](Block& b) { b.last_prefetch = static_cast<int16_t>(range.target); });
}

extern "C" {

CUresult cuMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute, CUdeviceptr p, size_t n) {
  BEGIN(1000);
  Common all;
  NEED_ARG(ForEachBlock(p, n, [&](const simgpu::Block& b) { all.Add(b); }));
  return Answer(all, data, size, attribute);
}

CUresult cuMemRangeGetAttributes(void** data, size_t* sizes, CUmem_range_attribute* attributes, size_t count,
                                 CUdeviceptr p, size_t n) {
  BEGIN(1000);
  NEED_ARG(data != nullptr && sizes != nullptr && attributes != nullptr && count != 0);
  Common all;
  NEED_ARG(ForEachBlock(p, n, [&](const simgpu::Block& b) { all.Add(b); }));
  for (size_t i = 0; i < count; ++i) {
    if (const CUresult r = Answer(all, data[i], sizes[i], attributes[i]); r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
