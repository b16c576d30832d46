// Attributes of kernels and functions.
#include "call.h"
#include "image.h"

namespace {

CUresult ParamInfo(const SimKernelInfo* info, size_t index, size_t* offset, size_t* size) {
  NEED(simgpu::HasSymbol("cuFuncGetParamInfo"), CUDA_ERROR_NOT_SUPPORTED);
  NEED(info != nullptr, CUDA_ERROR_INVALID_HANDLE);
  NEED_ARG(offset != nullptr && index < info->sizes.size());
  *offset = info->offsets[index];
  if (size != nullptr) *size = info->sizes[index];
  return CUDA_SUCCESS;
}

CUresult Attribute(int* value, CUfunction_attribute attribute, int max_dynamic_shared) {
  NEED_ARG(value != nullptr && attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 90;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = max_dynamic_shared;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel k) {
  BEGIN(100);
  NEED_ARG(out != nullptr);
  NEED(k != nullptr && k->magic == kKernelMagic, CUDA_ERROR_INVALID_HANDLE);
  *out = k->library;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel k) {
  BEGIN(100);
  NEED_ARG(name != nullptr);
  NEED(k != nullptr && k->magic == kKernelMagic, CUDA_ERROR_INVALID_HANDLE);
  *name = k->info->name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel k, size_t index, size_t* offset, size_t* size) {
  BEGIN(200);
  NEED(k != nullptr && k->magic == kKernelMagic, CUDA_ERROR_INVALID_HANDLE);
  return ParamInfo(k->info, index, offset, size);
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel k, CUdevice) {
  BEGIN(200);
  NEED(k != nullptr && k->magic == kKernelMagic, CUDA_ERROR_INVALID_HANDLE);
  return Attribute(value, attribute, 48 << 10);
}

CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel k, CUdevice) {
  BEGIN(200);
  NEED(k != nullptr && k->magic == kKernelMagic, CUDA_ERROR_INVALID_HANDLE);
  return CUDA_SUCCESS;
}

CUresult cuKernelSetCacheConfig(CUkernel k, CUfunc_cache, CUdevice) {
  BEGIN(200);
  NEED(k != nullptr && k->magic == kKernelMagic, CUDA_ERROR_INVALID_HANDLE);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t* offset, size_t* size) {
  BEGIN(200);
  return ParamInfo(simgpu::KernelInfo(f), index, offset, size);
}

CUresult cuFuncGetName(const char** name, CUfunction f) {
  BEGIN(100);
  const SimKernelInfo* info = simgpu::KernelInfo(f);
  NEED(info != nullptr, CUDA_ERROR_INVALID_HANDLE);
  NEED_ARG(name != nullptr);
  *name = info->name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule* out, CUfunction f) {
  BEGIN(100);
  NEED_ARG(out != nullptr);
  NEED(f != nullptr && f->magic == kFunctionMagic, CUDA_ERROR_INVALID_HANDLE);
  *out = f->module;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction f) {
  BEGIN(200);
  NEED(simgpu::KernelInfo(f) != nullptr, CUDA_ERROR_INVALID_HANDLE);
  return Attribute(value, attribute, f->magic == kFunctionMagic ? f->max_dynamic_shared : 48 << 10);
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
  BEGIN(200);
  NEED(simgpu::KernelInfo(f) != nullptr, CUDA_ERROR_INVALID_HANDLE);
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && f->magic == kFunctionMagic)
    f->max_dynamic_shared = value;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache) {
  BEGIN(200);
  NEED(simgpu::KernelInfo(f) != nullptr, CUDA_ERROR_INVALID_HANDLE);
  return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedMemConfig(CUfunction f, CUsharedconfig) {
  BEGIN(200);
  NEED(simgpu::KernelInfo(f) != nullptr, CUDA_ERROR_INVALID_HANDLE);
  return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction f) {
  BEGIN(100);
  NEED_ARG(state != nullptr && simgpu::KernelInfo(f) != nullptr);
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction f) {
  BEGIN(100);
  NEED_ARG(simgpu::KernelInfo(f) != nullptr);
  return CUDA_SUCCESS;
}

}  // extern "C"
