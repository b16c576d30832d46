// The kernels of generated programs, for the simulated GPU and as PTX, and the host functions.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "machine.h"
#include "try.h"

namespace differential {
namespace {

const char kSimulatedImage[] =
    "simgpu-module 1\n"
    "kernel mix params 8,8,8,8,8 ns 8000 ns_per_kib 0.4\n"
    "read p1 0 p3\n"
    "read p2 0 p3\n"
    "write p0 0 p3\n"
    "kernel update params 8,8,8 ns 6000 ns_per_kib 0.4\n"
    "update p0 0 p1\n"
    "kernel chase params 8,8,8 ns 6000 ns_per_kib 0.4\n"
    "update *p0 0 p1\n"
    "kernel sample params 8,8,8,8 ns 6000 ns_per_kib 0.4\n"
    "read t0 0 p2\n"
    "write p1 0 p2\n"
    "kernel store params 8,8,8,8 ns 6000 ns_per_kib 0.4\n"
    "write t0 0 p2\n"
    "read p1 0 p2\n"
    "global words 65536\n";

// One loop over the words of a block: i = thread, thread + threads, ...; each kernel has its own body.
#define LOOP(body)                                                      \
  "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n" \
  "mad.lo.u32 %r1, %r1, %r2, %r3;\n"                                    \
  "mov.u32 %r3, %nctaid.x; mul.lo.u32 %r2, %r2, %r3;\n"                 \
  "cvt.u64.u32 %i, %r1; shl.b64 %i, %i, 2;\n"                           \
  "cvt.u64.u32 %d, %r2; shl.b64 %d, %d, 2;\n"                           \
  "NEXT: setp.ge.u64 %q, %i, %n; @%q bra DONE;\n" body "add.u64 %i, %i, %d; bra NEXT;\nDONE: ret;\n"
// %r3, %r1: the column and the row of word i / 4, of rows of p4 words.
#define WORD_IN_ROW                                                                       \
  "ld.param.u64 %t, [p4]; cvt.u32.u64 %r2, %t; shr.u64 %t, %i, 2; cvt.u32.u64 %r3, %t;\n" \
  "div.u32 %r1, %r3, %r2; rem.u32 %r3, %r3, %r2;\n"
#define REGISTERS                     \
  ".reg .pred %q; .reg .u32 %r<8>;\n" \
  ".reg .u64 %i, %d, %n, %o, %a, %b, %t, %k;\n"

const char kPtxImage[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .global .align 16 .b8 words[65536];\n"
    ".visible .entry mix(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4) {\n" REGISTERS
    "ld.param.u64 %o, [p0]; ld.param.u64 %a, [p1]; ld.param.u64 %b, [p2]; ld.param.u64 %n, [p3];\n"
    "ld.param.u64 %k, [p4]; cvt.u32.u64 %r7, %k;\n"
    LOOP("add.u64 %t, %a, %i; ld.global.u32 %r4, [%t]; add.u64 %t, %b, %i; ld.global.u32 %r5, [%t];\n"
         "mad.lo.u32 %r4, %r4, 0x9E3779B1, %r7; mad.lo.u32 %r4, %r5, 0x85EBCA6B, %r4; shr.u32 %r5, %r4, 15;\n"
         "xor.b32 %r4, %r4, %r5; add.u64 %t, %o, %i; st.global.u32 [%t], %r4;\n")
    "}\n"
    ".visible .entry update(.param .u64 p0, .param .u64 p1, .param .u64 p2) {\n" REGISTERS
    "ld.param.u64 %o, [p0]; ld.param.u64 %n, [p1]; ld.param.u64 %k, [p2]; cvt.u32.u64 %r7, %k;\n"
    LOOP("add.u64 %t, %o, %i; ld.global.u32 %r4, [%t]; mad.lo.u32 %r4, %r4, 0x9E3779B1, %r7;\n"
         "shr.u32 %r5, %r4, 13; xor.b32 %r4, %r4, %r5; st.global.u32 [%t], %r4;\n")
    "}\n"
    ".visible .entry chase(.param .u64 p0, .param .u64 p1, .param .u64 p2) {\n" REGISTERS
    "ld.param.u64 %a, [p0]; ld.global.u64 %o, [%a]; ld.param.u64 %n, [p1]; ld.param.u64 %k, [p2];\n"
    "cvt.u32.u64 %r7, %k;\n"
    LOOP("add.u64 %t, %o, %i; ld.global.u32 %r4, [%t]; mad.lo.u32 %r4, %r4, 0x85EBCA6B, %r7;\n"
         "shr.u32 %r5, %r4, 11; xor.b32 %r4, %r4, %r5; st.global.u32 [%t], %r4;\n")
    "}\n"
    ".visible .entry sample(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) {\n" REGISTERS
    "ld.param.u64 %a, [p0]; ld.param.u64 %o, [p1]; ld.param.u64 %n, [p2]; ld.param.u64 %k, [p3];\n"
    "cvt.u32.u64 %r7, %k;\n"
    LOOP("shr.u64 %t, %i, 2; cvt.u32.u64 %r3, %t;\n"
         "tex.1d.v4.u32.s32 {%r4, %r5, %r6, %r0}, [%a, {%r3}];\n"
         "mad.lo.u32 %r4, %r4, 0x9E3779B1, %r7; add.u64 %t, %o, %i; st.global.u32 [%t], %r4;\n")
    "}\n"
    ".visible .entry sample_rows(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4) {\n"
    REGISTERS
    "ld.param.u64 %a, [p0]; ld.param.u64 %o, [p1]; ld.param.u64 %n, [p2]; ld.param.u64 %k, [p3];\n"
    "cvt.u32.u64 %r7, %k;\n"
    LOOP(WORD_IN_ROW
         "tex.2d.v4.u32.s32 {%r4, %r5, %r6, %r0}, [%a, {%r3, %r1}];\n"
         "mad.lo.u32 %r4, %r4, 0x9E3779B1, %r7; add.u64 %t, %o, %i; st.global.u32 [%t], %r4;\n")
    "}\n"
    ".visible .entry store(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4) {\n" REGISTERS
    "ld.param.u64 %o, [p0]; ld.param.u64 %a, [p1]; ld.param.u64 %n, [p2]; ld.param.u64 %k, [p3];\n"
    "cvt.u32.u64 %r7, %k;\n"
    LOOP(WORD_IN_ROW
         "add.u64 %t, %a, %i; ld.global.u32 %r4, [%t]; mad.lo.u32 %r4, %r4, 0x85EBCA6B, %r7; shl.b32 %r3, %r3, 2;\n"
         "sust.b.2d.b32.trap [%o, {%r3, %r1}], {%r4};\n")
    "}\n";

std::atomic<bool> g_marks[kMaxMarks];
CUfunction g_functions[kMaxModules][3], g_sample[kMaxModules], g_sample_rows[kMaxModules], g_store[kMaxModules];
CUfunction g_kernels[3];  // of a library: of every context
enum { kMixFunction, kUpdateFunction, kChaseFunction };

void Set(void* mark) { static_cast<std::atomic<bool>*>(mark)->store(true, std::memory_order_release); }

constexpr unsigned kBlocks = 32, kThreads = 128;

CUresult Launch(int module, int which, CUstream stream, Form form, uint64_t* values, size_t count) {
  CUfunction f = g_functions[module][which];
  if (form == kKernelHandle && g_kernels[which] != nullptr) f = g_kernels[which];
  void* params[8];
  for (size_t i = 0; i < count; ++i) params[i] = &values[i];
  size_t size = count * 8;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, values, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  switch (form) {
    case kExtra:
      return cuLaunchKernel(f, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, nullptr, extra);
    case kCooperative:
      return cuLaunchCooperativeKernel(f, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, params);
    case kExtended: {
      CUlaunchConfig config{};
      config.gridDimX = kBlocks;
      config.blockDimX = kThreads;
      config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
      config.hStream = stream;
      return cuLaunchKernelEx(&config, f, params, nullptr);
    }
    default:
      return cuLaunchKernel(f, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, params, nullptr);
  }
}

}  // namespace

CUDA_KERNEL_NODE_PARAMS UpdateNode(int module, void** params) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = g_functions[module][kUpdateFunction];
  kernel.gridDimX = kBlocks;
  kernel.blockDimX = kThreads;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = params;
  return kernel;
}

CUresult Load(int module) {
  const char* const names[] = {"mix", "update", "chase"};
  static CUlibrary library = nullptr;
  if (library == nullptr) {
    const char* const image = Simulated() ? kSimulatedImage : kPtxImage;
    const CUresult made = cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (made != CUDA_SUCCESS) return made;
    for (int i = 0; i < 3; ++i) {
      CUkernel kernel = nullptr;
      const CUresult found = cuLibraryGetKernel(&kernel, library, names[i]);
      if (found != CUDA_SUCCESS) return found;
      g_kernels[i] = reinterpret_cast<CUfunction>(kernel);
    }
  }
  const CUresult loaded = cuModuleLoadData(&m[module], Simulated() ? kSimulatedImage : kPtxImage);
  if (loaded != CUDA_SUCCESS) return loaded;
  for (int i = 0; i < 3; ++i) {
    const CUresult found = cuModuleGetFunction(&g_functions[module][i], m[module], names[i]);
    if (found != CUDA_SUCCESS) return found;
  }
  TRY(cuModuleGetFunction(&g_store[module], m[module], "store"));
  TRY(cuModuleGetFunction(&g_sample[module], m[module], "sample"));
  return cuModuleGetFunction(&g_sample_rows[module], m[module], Simulated() ? "sample" : "sample_rows");
}

CUresult Global(int block, int module) {
  size_t bytes = 0;
  const CUresult result = cuModuleGetGlobal(&p[block], &bytes, m[module], "words");
  Record("global of %zu bytes", bytes);
  return result;
}

CUresult Mix(int module, CUstream stream, Form form, CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, size_t bytes,
             uint64_t k) {
  uint64_t values[] = {out, a, b, bytes, k};
  return Launch(module, kMixFunction, stream, form, values, 5);
}
CUresult Update(int module, CUstream stream, Form form, CUdeviceptr data, size_t bytes, uint64_t k) {
  uint64_t values[] = {data, bytes, k};
  return Launch(module, kUpdateFunction, stream, form, values, 3);
}
CUresult Chase(int module, CUstream stream, CUdeviceptr table, size_t bytes, uint64_t k) {
  uint64_t values[] = {table, bytes, k};
  return Launch(module, kChaseFunction, stream, kPlain, values, 3);
}

CUresult Sample(int module, CUstream stream, int texture, CUdeviceptr out, size_t bytes, uint64_t k) {
  const uint64_t width = TextureWidth(texture);
  uint64_t values[] = {tex[texture], out, bytes, k, width};
  void* params[] = {&values[0], &values[1], &values[2], &values[3], &values[4]};
  const CUfunction kernel = width == 0 ? g_sample[module] : g_sample_rows[module];
  return cuLaunchKernel(kernel, kBlocks, 1, 1, kThreads, 1, 1, 0, stream, params, nullptr);
}

CUresult Store(int module, CUstream stream, int surface, CUdeviceptr data, size_t bytes, uint64_t k) {
  uint64_t values[] = {surf[surface], data, bytes, k, SurfaceWidth(surface)};
  void* params[] = {&values[0], &values[1], &values[2], &values[3], &values[4]};
  return cuLaunchKernel(g_store[module], kBlocks, 1, 1, kThreads, 1, 1, 0, stream, params, nullptr);
}

CUresult SetMark(int mark, CUstream stream) {
  g_marks[mark].store(false, std::memory_order_relaxed);
  return cuLaunchHostFunc(stream, Set, &g_marks[mark]);
}
CUresult WaitMark(int mark) {
  // On the simulated GPU nothing runs until a host thread waits: a query processes the work that is due.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!g_marks[mark].load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() > end) return CUDA_ERROR_TIMEOUT;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return CUDA_SUCCESS;
}

}  // namespace differential
