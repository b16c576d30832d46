// Multicast objects: bookkeeping alone, since no memory is reached through them. They bind memory of cuMemCreate.
#include <set>

#include "call.h"

using simgpu::MemoryKind;
using simgpu::Sim;

namespace {

struct Multicast {
  uint64_t bytes;
  unsigned devices;
  std::set<int> cards;
};
std::set<Multicast*>& All() {
  static auto& all = *new std::set<Multicast*>;
  return all;
}
Multicast* Named(CUmemGenericAllocationHandle handle) {
  auto* const object = reinterpret_cast<Multicast*>(handle);
  return All().count(object) != 0 ? object : nullptr;
}

CUresult Bind(Multicast* object, size_t offset, CUdeviceptr p, size_t bytes, unsigned long long flags) {
  NEED_ARG(object != nullptr && flags == 0 && bytes != 0 && bytes % simgpu::kBlockBytes == 0);
  NEED_ARG(offset % simgpu::kBlockBytes == 0 && offset <= object->bytes && bytes <= object->bytes - offset);
  NEED(object->cards.size() == object->devices, CUDA_ERROR_ILLEGAL_STATE);
  const simgpu::Allocation* const a = simgpu::FindAllocation(p);
  NEED_ARG(a != nullptr && a->kind == MemoryKind::kMapped && bytes <= a->base + a->size - p);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMulticastGetGranularity(size_t* out, const CUmulticastObjectProp* prop, CUmulticastGranularity_flags) {
  BEGIN(100);
  NEED_ARG(out != nullptr && prop != nullptr);
  *out = simgpu::kBlockBytes;
  return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle* out, const CUmulticastObjectProp* prop) {
  BEGIN(1000);
  NEED_ARG(out != nullptr && prop != nullptr && prop->size != 0 && prop->size % simgpu::kBlockBytes == 0);
  auto* const object = new Multicast{prop->size, prop->numDevices, {}};
  All().insert(object);
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(object);
  return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev) {
  BEGIN(1000);
  NEED_CARD(dev);
  Multicast* const object = Named(handle);
  NEED_ARG(object != nullptr && object->cards.size() < object->devices && object->cards.insert(card).second);
  return CUDA_SUCCESS;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr p, size_t bytes,
                             unsigned long long flags) {
  BEGIN(1000);
  return Bind(Named(handle), offset, p, bytes, flags);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice dev, size_t offset, size_t bytes) {
  BEGIN(1000);
  NEED_CARD(dev);
  const Multicast* const object = Named(handle);
  NEED_ARG(object != nullptr && object->cards.count(card) != 0 && offset <= object->bytes &&
           bytes <= object->bytes - offset);
  return CUDA_SUCCESS;
}

}  // extern "C"
