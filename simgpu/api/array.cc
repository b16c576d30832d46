// Arrays: rows without a gap, in memory that no pointer of the application names. Mipmapped arrays are an array a
// level.
#include "array.h"

#include <algorithm>

using simgpu::MemoryKind;
using simgpu::Sim;

namespace {

size_t AtLeastOne(size_t n) { return std::max<size_t>(n, 1); }

uint64_t ElementBytes(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  switch (d.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return d.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return uint64_t{2} * d.NumChannels;
    default:
      return uint64_t{4} * d.NumChannels;
  }
}

CUresult Make(CUcontext context, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& d, CUmipmappedArray levels_of) {
  NEED_ARG(d.Width != 0 && (d.NumChannels == 1 || d.NumChannels == 2 || d.NumChannels == 4));
  const bool is_elsewhere = (d.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
  auto* array = new CUarray_st;
  array->context = context;
  array->shape = d;
  array->levels_of = levels_of;
  array->row = d.Width * ElementBytes(d);
  array->bytes = is_elsewhere ? 0 : array->row * AtLeastOne(d.Height) * AtLeastOne(d.Depth);
  const auto fail = [array] {
    delete array;
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  if (array->bytes != 0) {
    if (!Sim().TakeUnmanaged(context->card, array->bytes)) return fail();
    array->base = Sim().memory().Reserve(array->bytes, 512);
    if (array->base == 0) {
      Sim().GiveUnmanaged(context->card, array->bytes);
      return fail();
    }
    Sim().memory().Add(array->base, array->bytes, MemoryKind::kUnmanaged, context->card)->counted = false;
  }
  context->arrays.insert(array);
  *out = array;
  return CUDA_SUCCESS;
}

bool IsLive(CUarray array) {
  const auto& all = simgpu::TheDriver().contexts;
  return array != nullptr &&
         std::any_of(all.begin(), all.end(), [array](CUcontext c) { return c->arrays.contains(array); });
}

}  // namespace

namespace simgpu {

void FreeArray(CUarray array) {
  if (array->base != 0) {
    Allocation* const memory = Sim().memory().Find(array->base);
    Sim().memory().NoteFreed(*memory, Sim().operations());
    {
      SharedState::Lock lock(Sim().state());
      Sim().memory().Remove(memory);
    }
    Sim().memory().Unreserve(array->base, array->bytes);
    Sim().GiveUnmanaged(array->context->card, array->bytes);
  }
  array->context->arrays.erase(array);
  delete array;
}

CUresult FindArray(CUarray array, ArrayRows* out) {
  NEED(IsLive(array), CUDA_ERROR_INVALID_HANDLE);
  NEED(array->base != 0, CUDA_ERROR_NOT_SUPPORTED);  // sparse ones
  *out = {array->base, array->row, array->row * AtLeastOne(array->shape.Height), array->bytes,
          ElementBytes(array->shape)};
  return CUDA_SUCCESS;
}

CUarray LevelOf(CUmipmappedArray array, unsigned level) {
  return array != nullptr && level < array->levels.size() ? array->levels[level] : nullptr;
}

}  // namespace simgpu

extern "C" {

CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  BEGIN_UNSAFE(Sim().profile().malloc_host_ns);
  NEED_OWNER();
  NEED_ARG(out != nullptr && d != nullptr);
  return Make(context, out, *d, nullptr);
}

CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* d) {
  BEGIN_UNSAFE(Sim().profile().malloc_host_ns);
  NEED_OWNER();
  NEED_ARG(out != nullptr && d != nullptr);
  return Make(context, out, {d->Width, d->Height, 0, d->Format, d->NumChannels, 0}, nullptr);
}

CUresult cuArrayDestroy(CUarray array) {
  BEGIN_UNSAFE(Sim().profile().free_host_ns);
  NEED_OWNER();
  NEED(IsLive(array) && array->levels_of == nullptr, CUDA_ERROR_INVALID_HANDLE);
  Sim().CatchUp(call.lock);
  Sim().WaitContext(call.lock, nullptr, array->context->card, "a device (cuArrayDestroy)");
  simgpu::FreeArray(array);
  return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray array) {
  BEGIN(100);
  NEED_ARG(out != nullptr);
  NEED(IsLive(array), CUDA_ERROR_INVALID_HANDLE);
  *out = array->shape;
  return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray array) {
  BEGIN(100);
  NEED_ARG(out != nullptr);
  NEED(IsLive(array), CUDA_ERROR_INVALID_HANDLE);
  *out = {array->shape.Width, array->shape.Height, array->shape.Format, array->shape.NumChannels};
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned int levels) {
  BEGIN_UNSAFE(Sim().profile().malloc_host_ns);
  NEED_OWNER();
  NEED_ARG(out != nullptr && d != nullptr && levels != 0);
  // As many as halving the longest side gives.
  const size_t longest = std::max({d->Width, d->Height, d->Depth});
  unsigned most = 1;
  while (longest >> most != 0) ++most;
  auto* made = new CUmipmappedArray_st;
  for (unsigned level = 0; level < std::min(levels, most); ++level) {
    CUDA_ARRAY3D_DESCRIPTOR shape = *d;
    shape.Width = AtLeastOne(d->Width >> level);
    if (d->Height != 0) shape.Height = AtLeastOne(d->Height >> level);
    if (d->Depth != 0) shape.Depth = AtLeastOne(d->Depth >> level);
    CUarray array = nullptr;
    if (const CUresult r = Make(context, &array, shape, made); r != CUDA_SUCCESS) {
      for (CUarray one : made->levels) simgpu::FreeArray(one);
      delete made;
      return r;
    }
    made->levels.push_back(array);
  }
  *out = made;
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray array, unsigned int level) {
  BEGIN(100);
  NEED_ARG(out != nullptr && simgpu::LevelOf(array, level) != nullptr);
  *out = simgpu::LevelOf(array, level);
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  BEGIN_UNSAFE(Sim().profile().free_host_ns);
  NEED_OWNER();
  NEED(array != nullptr && !array->levels.empty() && IsLive(array->levels.front()), CUDA_ERROR_INVALID_HANDLE);
  Sim().CatchUp(call.lock);
  Sim().WaitContext(call.lock, nullptr, context->card, "a device (cuMipmappedArrayDestroy)");
  for (CUarray one : array->levels) simgpu::FreeArray(one);
  delete array;
  return CUDA_SUCCESS;
}

}  // extern "C"
