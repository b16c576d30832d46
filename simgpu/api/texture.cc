// Texture and surface objects: handles of memory that kernels read and write. How they filter and convert is not
// simulated.
#include "array.h"

using simgpu::Sim;
using simgpu::TheDriver;

namespace {

constexpr size_t kAlignment = 512;  // CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT
constexpr size_t kPitchAlignment = 32;

CUresult MemoryOf(const CUDA_RESOURCE_DESC& d, SimObject* out) {
  out->resource = d;
  simgpu::ArrayRows rows;
  switch (d.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      if (const CUresult r = simgpu::FindArray(d.res.array.hArray, &rows); r != CUDA_SUCCESS) return r;
      out->address = rows.base;
      out->bytes = rows.bytes;
      return CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      // Its base level: kernels of the simulation name no other.
      const CUarray base = simgpu::LevelOf(d.res.mipmap.hMipmappedArray, 0);
      if (const CUresult r = simgpu::FindArray(base, &rows); r != CUDA_SUCCESS) return r;
      out->address = rows.base;
      out->bytes = rows.bytes;
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR:
      out->address = d.res.linear.devPtr;
      out->bytes = d.res.linear.sizeInBytes;
      break;
    case CU_RESOURCE_TYPE_PITCH2D:
      NEED_ARG(d.res.pitch2D.height != 0 && d.res.pitch2D.pitchInBytes % kPitchAlignment == 0);
      out->address = d.res.pitch2D.devPtr;
      out->bytes = d.res.pitch2D.pitchInBytes * d.res.pitch2D.height;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  NEED_ARG(out->address % kAlignment == 0 && out->bytes != 0 && Sim().Mapped(out->address, out->bytes));
  return CUDA_SUCCESS;
}

CUresult MakeObject(unsigned long long* out, const CUDA_RESOURCE_DESC* d, bool is_surface) {
  NEED_ARG(out != nullptr && d != nullptr && d->flags == 0);
  NEED_ARG(!is_surface || d->resType == CU_RESOURCE_TYPE_ARRAY);
  SimObject object;
  if (const CUresult r = MemoryOf(*d, &object); r != CUDA_SUCCESS) return r;
  *out = TheDriver().next_object++;
  TheDriver().objects[*out] = object;
  return CUDA_SUCCESS;
}

CUresult EndObject(unsigned long long object) {
  NEED_ARG(TheDriver().objects.erase(object) == 1);
  return CUDA_SUCCESS;
}

CUresult ResourceOf(CUDA_RESOURCE_DESC* out, unsigned long long object) {
  const auto it = TheDriver().objects.find(object);
  NEED_ARG(out != nullptr && it != TheDriver().objects.end());
  *out = it->second.resource;
  return CUDA_SUCCESS;
}

}  // namespace

bool simgpu::FindObject(uint64_t object, uint64_t* address, uint64_t* bytes) {
  const auto it = TheDriver().objects.find(object);
  if (it == TheDriver().objects.end()) return false;
  *address = it->second.address;
  *bytes = it->second.bytes;
  return true;
}

extern "C" {

CUresult cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* texture,
                           const CUDA_RESOURCE_VIEW_DESC* view) {
  BEGIN(2000);
  NEED_CONTEXT();
  NEED_ARG(texture != nullptr);
  // A view is of an array.
  NEED_ARG(view == nullptr || (resource != nullptr && (resource->resType == CU_RESOURCE_TYPE_ARRAY ||
                                                       resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)));
  return MakeObject(out, resource, false);
}
CUresult cuTexObjectDestroy(CUtexObject object) {
  BEGIN(1000);
  return EndObject(object);
}
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject object) {
  BEGIN(100);
  return ResourceOf(out, object);
}
CUresult cuSurfObjectCreate(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  BEGIN(2000);
  NEED_CONTEXT();
  return MakeObject(out, resource, true);
}
CUresult cuSurfObjectDestroy(CUsurfObject object) {
  BEGIN(1000);
  return EndObject(object);
}
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject object) {
  BEGIN(100);
  return ResourceOf(out, object);
}

}  // extern "C"
