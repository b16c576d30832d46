// Arrays: they use memory, but no call reaches their contents.
#include "call.h"

using simgpu::Sim;

namespace {

CUresult Make(CUcontext context, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  const auto some = [](size_t n) { return n ? n : 1; };
  NEED_ARG(d.Width != 0 && d.NumChannels != 0);
  const uint64_t element = d.Format == CU_AD_FORMAT_UNSIGNED_INT8 ? 1 : d.Format == CU_AD_FORMAT_HALF ? 2 : 4;
  const bool elsewhere = (d.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
  const uint64_t bytes = elsewhere ? 0 : d.Width * some(d.Height) * some(d.Depth) * d.NumChannels * element;
  NEED(bytes == 0 || Sim().TakeUnmanaged(context->card, bytes), CUDA_ERROR_OUT_OF_MEMORY);
  *out = new CUarray_st{context, bytes};
  context->arrays.insert(*out);
  return CUDA_SUCCESS;
}

}  // namespace

namespace simgpu {
void FreeArray(CUarray array) {
  if (array->bytes) Sim().GiveUnmanaged(array->context->card, array->bytes);
  array->context->arrays.erase(array);
  delete array;
}
}  // namespace simgpu

extern "C" {

CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  BEGIN_UNSAFE(Sim().profile().malloc_host_ns);
  NEED_OWNER();
  NEED_ARG(out != nullptr && d != nullptr);
  return Make(context, out, *d);
}

CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* d) {
  BEGIN_UNSAFE(Sim().profile().malloc_host_ns);
  NEED_OWNER();
  NEED_ARG(out != nullptr && d != nullptr);
  return Make(context, out, {d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
}

CUresult cuArrayDestroy(CUarray array) {
  BEGIN_UNSAFE(Sim().profile().free_host_ns);
  NEED_OWNER();
  NEED_ARG(array != nullptr && context->arrays.contains(array));
  simgpu::FreeArray(array);
  return CUDA_SUCCESS;
}

}  // extern "C"
