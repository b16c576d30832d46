// The memory that the structs of 2D and 3D copies name.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_SIDES_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_SIDES_H_

#include <array>
#include <cstdint>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/types.h"

namespace sluice {

inline memory::Extent Rows(CUdeviceptr base, size_t pitch, size_t width, size_t height) {
  return {base, width && height ? pitch * (height - 1) + width : 0};
}

// Where one side of a copy begins; 0: in an array. A host's pointer may point into managed memory.
inline CUdeviceptr SideAt(CUmemorytype type, const void* host, CUdeviceptr device) {
  if (type == CU_MEMORYTYPE_HOST) return reinterpret_cast<uintptr_t>(host);
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? device : 0;
}

inline memory::Extent Side2D(CUdeviceptr at, size_t pitch, size_t x, size_t y, size_t width, size_t height) {
  return at ? Rows(at + y * pitch + x, pitch, width, height) : memory::Extent{};
}

inline memory::Extent Side3D(CUdeviceptr at, size_t pitch, size_t rows, size_t x, size_t y, size_t z, size_t width,
                             size_t height, size_t depth) {
  if (!at) return {};
  const size_t slice = pitch * (rows ? rows : height);
  const bool is_empty = !width || !height || !depth;
  return {at + z * slice + y * pitch + x, is_empty ? 0 : slice * (depth - 1) + pitch * (height - 1) + width};
}

// The destination, then the source.
inline std::array<memory::Extent, 2> Sides(const CUDA_MEMCPY2D* c) {
  if (!c) return {};
  return {Side2D(SideAt(c->dstMemoryType, c->dstHost, c->dstDevice), c->dstPitch, c->dstXInBytes, c->dstY,
                 c->WidthInBytes, c->Height),
          Side2D(SideAt(c->srcMemoryType, c->srcHost, c->srcDevice), c->srcPitch, c->srcXInBytes, c->srcY,
                 c->WidthInBytes, c->Height)};
}
template <typename Copy3D>
std::array<memory::Extent, 2> Sides3D(const Copy3D* c) {
  if (!c) return {};
  return {Side3D(SideAt(c->dstMemoryType, c->dstHost, c->dstDevice), c->dstPitch, c->dstHeight, c->dstXInBytes, c->dstY,
                 c->dstZ, c->WidthInBytes, c->Height, c->Depth),
          Side3D(SideAt(c->srcMemoryType, c->srcHost, c->srcDevice), c->srcPitch, c->srcHeight, c->srcXInBytes, c->srcY,
                 c->srcZ, c->WidthInBytes, c->Height, c->Depth)};
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_COPY_SIDES_H_
