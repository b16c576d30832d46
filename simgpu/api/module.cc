// Modules, libraries, kernels, functions.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include "call.h"
#include "image.h"

using simgpu::Sim;

namespace simgpu {

SimKernelInfo* KernelInfo(CUfunction f) {
  if (f == nullptr) return nullptr;
  // A CUkernel is accepted in place of a CUfunction.
  if (f->magic == kFunctionMagic) return f->info;
  auto* k = reinterpret_cast<CUkernel>(f);
  return k->magic == kKernelMagic ? k->info : nullptr;
}

}  // namespace simgpu

namespace {

CUresult Parse(const void* data, std::shared_ptr<SimImage>* image) {
  NEED_ARG(data != nullptr);
  std::string wrong;
  *image = simgpu::ParseImage(data, &wrong);
  if (*image != nullptr) return CUDA_SUCCESS;
  std::fprintf(stderr, "simgpu: %s is not understood\n", wrong.c_str());
  return CUDA_ERROR_INVALID_IMAGE;
}

void FreeGlobals(CUmodule m) {
  for (auto& [name, a] : m->globals) {
    if (simgpu::FindAllocation(a->base) == a) simgpu::FreeNow(a->base);
  }
  m->globals.clear();
}

CUresult NewModule(CUcontext context, std::shared_ptr<SimImage> image, CUmodule* out) {
  auto m = std::make_unique<CUmod_st>();
  m->context = context;
  m->image = std::move(image);
  for (const auto& [name, bytes] : m->image->globals) {
    const uint64_t size = (bytes + 511) / 512 * 512;
    if (!Sim().TakeUnmanaged(context->card, size)) {
      FreeGlobals(m.get());
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const uint64_t address = Sim().memory().Reserve(size, 512);
    simgpu::Allocation* a = Sim().memory().Add(address, size, simgpu::MemoryKind::kUnmanaged, context->card);
    a->requested = bytes;
    a->owner = context;
    context->memory[address] = a;
    m->globals[name] = a;
  }
  context->modules.insert(m.get());
  *out = m.release();
  return CUDA_SUCCESS;
}

CUresult GetFunction(CUmodule m, const char* name, CUfunction* out) {
  auto& f = m->functions[name];
  if (f == nullptr) {
    SimKernelInfo* info = simgpu::FindKernel(*m->image, name);
    if (info == nullptr) {
      m->functions.erase(name);
      return CUDA_ERROR_NOT_FOUND;
    }
    f = simgpu::NewFunction();
    f->info = info;
    f->module = m;
  }
  *out = f.get();
  return CUDA_SUCCESS;
}

CUresult ModuleOf(CUlibrary library, CUcontext context, CUmodule* out) {
  auto& m = library->modules[context];
  if (m == nullptr) {
    if (const CUresult r = NewModule(context, library->image, &m); r != CUDA_SUCCESS) return r;
    m->library = library;
  }
  *out = m;
  return CUDA_SUCCESS;
}

bool ReadAll(const char* path, std::string* out) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return false;
  out->assign(std::istreambuf_iterator<char>(in), {});
  return true;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule* out, const void* data) {
  BEGIN(200000);
  NEED_ARG(out != nullptr);
  NEED_OWNER();
  std::shared_ptr<SimImage> image;
  if (const CUresult r = Parse(data, &image); r != CUDA_SUCCESS) return r;
  return NewModule(context, image, out);
}
CUresult cuModuleLoadDataEx(CUmodule* out, const void* data, unsigned int, CUjit_option*, void**) {
  return cuModuleLoadData(out, data);
}
CUresult cuModuleLoadFatBinary(CUmodule* out, const void* data) { return cuModuleLoadData(out, data); }

CUresult cuModuleLoad(CUmodule* out, const char* path) {
  NEED_ARG(path != nullptr);
  std::string text;
  NEED(ReadAll(path, &text), CUDA_ERROR_FILE_NOT_FOUND);
  return cuModuleLoadData(out, text.c_str());
}

CUresult cuModuleUnload(CUmodule m) {
  BEGIN(20000);
  NEED(m != nullptr && m->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  simgpu::WaitFor(call, m->context, "a context (cuModuleUnload)");
  FreeGlobals(m);
  m->context->modules.erase(m);
  m->magic = kDead;  // the object is kept, since graph nodes may refer to its functions
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule m, const char* name) {
  BEGIN(1000);
  NEED_ARG(out != nullptr && name != nullptr);
  NEED(m != nullptr && m->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  return GetFunction(m, name, out);
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule m) {
  BEGIN(100);
  NEED_ARG(count != nullptr);
  NEED(m != nullptr && m->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  *count = static_cast<unsigned>(m->image->kernels.size());
  return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* out, unsigned int count, CUmodule m) {
  BEGIN(1000);
  NEED_ARG(out != nullptr);
  NEED(m != nullptr && m->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  unsigned i = 0;
  for (const auto& [name, k] : m->image->kernels) {
    if (i < count) GetFunction(m, name.c_str(), &out[i++]);
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* out, size_t* bytes, CUmodule m, const char* name) {
  BEGIN(1000);
  NEED_ARG(name != nullptr);
  NEED(m != nullptr && m->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  auto it = m->globals.find(name);
  NEED(it != m->globals.end(), CUDA_ERROR_NOT_FOUND);
  if (out != nullptr) *out = it->second->base;
  if (bytes != nullptr) *bytes = it->second->requested;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  BEGIN(20);
  NEED_ARG(mode != nullptr);
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* out, const void* data, CUjit_option*, void**, unsigned int, CUlibraryOption*,
                           void**, unsigned int) {
  BEGIN(200000);
  NEED_ARG(out != nullptr);
  std::shared_ptr<SimImage> image;
  if (const CUresult r = Parse(data, &image); r != CUDA_SUCCESS) return r;
  auto* l = new CUlib_st;
  l->image = std::move(image);
  *out = l;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option* a, void** b, unsigned int c,
                               CUlibraryOption* d, void** e, unsigned int f) {
  NEED_ARG(path != nullptr);
  std::string text;
  NEED(ReadAll(path, &text), CUDA_ERROR_FILE_NOT_FOUND);
  return cuLibraryLoadData(out, text.c_str(), a, b, c, d, e, f);
}

CUresult cuLibraryUnload(CUlibrary l) {
  BEGIN(20000);
  NEED(l != nullptr && l->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  for (const auto& [context, m] : l->modules) {
    simgpu::EndFunctions(m);
    m->magic = kDead;
  }
  l->magic = kDead;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary l, const char* name) {
  BEGIN(1000);
  NEED_ARG(out != nullptr && name != nullptr);
  NEED(l != nullptr && l->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  auto& k = l->kernels[name];
  if (k == nullptr) {
    SimKernelInfo* info = simgpu::FindKernel(*l->image, name);
    if (info == nullptr) {
      l->kernels.erase(name);
      return CUDA_ERROR_NOT_FOUND;
    }
    k = std::make_unique<CUkern_st>();
    k->info = info;
    k->library = l;
  }
  *out = k.get();
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary l) {
  BEGIN(100);
  NEED_ARG(count != nullptr);
  NEED(l != nullptr && l->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  *count = static_cast<unsigned>(l->image->kernels.size());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* out, CUlibrary l) {
  BEGIN(1000);
  NEED_ARG(out != nullptr);
  NEED_OWNER();
  NEED(l != nullptr && l->magic == kModuleMagic, CUDA_ERROR_INVALID_HANDLE);
  return ModuleOf(l, context, out);
}

CUresult cuLibraryGetGlobal(CUdeviceptr* out, size_t* bytes, CUlibrary l, const char* name) {
  CUmodule m = nullptr;
  if (const CUresult r = cuLibraryGetModule(&m, l); r != CUDA_SUCCESS) return r;
  return cuModuleGetGlobal_v2(out, bytes, m, name);
}

CUresult cuKernelGetFunction(CUfunction* out, CUkernel k) {
  BEGIN(1000);
  NEED_ARG(out != nullptr);
  NEED_OWNER();
  NEED(k != nullptr && k->magic == kKernelMagic, CUDA_ERROR_INVALID_HANDLE);
  CUmodule m = nullptr;
  if (const CUresult r = ModuleOf(k->library, context, &m); r != CUDA_SUCCESS) return r;
  const CUresult r = GetFunction(m, k->info->name.c_str(), out);
  if (r == CUDA_SUCCESS) (*out)->kernel = k;
  return r;
}

}  // extern "C"
