#include "machine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "simgpu/simgpu.h"
#include "try.h"

namespace differential {

CUcontext c[kMaxContexts];
CUdeviceptr p[kMaxBlocks];
void* h[kMaxBlocks];
CUstream s[kMaxStreams] = {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, nullptr};
CUevent e[kMaxEvents];
CUgraph g[kMaxGraphs];
CUgraphExec x[kMaxGraphs];
CUmemoryPool pool[kMaxPools];
CUmodule m[kMaxModules];
#if CUDA_VERSION >= 12040
CUgreenCtx green[kMaxContexts];
#endif

namespace {

auto* const g_digest = reinterpret_cast<decltype(&simgpu_digest)>(dlsym(RTLD_DEFAULT, "simgpu_digest"));
auto* const g_stats = reinterpret_cast<decltype(&simgpu_stats)>(dlsym(RTLD_DEFAULT, "simgpu_stats"));

uint64_t g_hash = 14695981039346656037ull;
bool g_keep = false;
std::string g_text;

uint64_t HashBytes(const void* data, size_t n, uint64_t hash = 14695981039346656037ull) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  for (; i < n; ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

CUmemLocation At(int device) {
  CUmemLocation at{};
  at.type = device < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  at.id = device < 0 ? 0 : device;
  return at;
}

}  // namespace

bool Simulated() { return g_digest != nullptr; }

int Start() {
  int count = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) {
    std::fputs("no CUDA GPU\n", stderr);
    std::_Exit(77);
  }
  return count;
}

void KeepText(bool keep) { g_keep = keep; }
uint64_t RecordHash() { return g_hash; }
const char* RecordText() { return g_text.c_str(); }
void Record(const char* format, ...) {
  char line[256];
  va_list list;
  va_start(list, format);
  const int n = std::vsnprintf(line, sizeof line, format, list);
  va_end(list);
  g_hash = HashBytes(line, std::min<size_t>(sizeof line - 1, static_cast<size_t>(n)), g_hash);
  if (g_keep) g_text.append(line).append("\n");
}

CUresult Pitched(CUdeviceptr* out, size_t width, size_t rows) {
  size_t pitch = 0;
  TRY(cuMemAllocPitch(out, &pitch, width, rows, 4));
  Record("pitch %zu", pitch);
  return CUDA_SUCCESS;
}

CUresult MakePool(CUmemoryPool* out, int device) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = At(device);
  return cuMemPoolCreate(out, &props);
}

CUresult Register(void** out, size_t bytes) {
  *out = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return cuMemHostRegister(*out, bytes, CU_MEMHOSTREGISTER_PORTABLE);
}
CUresult Unregister(void* memory) {
  TRY(cuMemHostUnregister(memory));
  std::free(memory);
  return CUDA_SUCCESS;
}

CUresult Prefetch(CUdeviceptr at, size_t bytes, int device, CUstream stream) {
#if CUDA_VERSION >= 13000
  return cuMemPrefetchAsync(at, bytes, At(device), 0, stream);
#else
  return cuMemPrefetchAsync(at, bytes, device < 0 ? CU_DEVICE_CPU : device, stream);
#endif
}
CUresult Advise(CUdeviceptr at, size_t bytes, CUmem_advise advice, int device) {
#if CUDA_VERSION >= 13000
  return cuMemAdvise(at, bytes, advice, At(device));
#else
  return cuMemAdvise(at, bytes, advice, device < 0 ? CU_DEVICE_CPU : device);
#endif
}
CUresult Discard(CUdeviceptr at, size_t bytes, CUstream stream) {
#if CUDA_VERSION >= 13000
  return cuMemDiscardBatchAsync(&at, &bytes, 1, 0, stream);
#else
  return CUDA_SUCCESS;
#endif
}

CUresult Copy2D(CUdeviceptr to, size_t to_pitch, CUdeviceptr from, size_t from_pitch, size_t width, size_t rows,
                CUstream stream, bool waits) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.srcPitch = from_pitch;
  copy.dstDevice = to;
  copy.dstPitch = to_pitch;
  copy.WidthInBytes = width;
  copy.Height = rows;
  return waits ? cuMemcpy2D(&copy) : cuMemcpy2DAsync(&copy, stream);
}
CUresult CopyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                  CUstream stream) {
  return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream);
}
CUresult CopyBatch(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
#if CUDA_VERSION >= 13000
  // Two halves, whose order among each other is free.
  const size_t half = bytes / 2;
  CUdeviceptr tos[] = {to, to + half}, froms[] = {from, from + half};
  size_t sizes[] = {half, bytes - half}, index = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  if (half != 0) return cuMemcpyBatchAsync(tos, froms, sizes, 2, &attributes, &index, 1, stream);
#endif
  return cuMemcpyDtoDAsync(to, from, bytes, stream);
}

CUresult MakeContext(CUcontext* out, int device) {
#if CUDA_VERSION >= 13000
  return cuCtxCreate(out, nullptr, 0, device);
#else
  return cuCtxCreate(out, 0, device);
#endif
}

#if CUDA_VERSION >= 12040
CUresult MakeGreen(int context, int device) {
  CUdevResource all{}, part{};
  unsigned count = 1;
  TRY(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  TRY(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16));
  CUdevResourceDesc description = nullptr;
  TRY(cuDevResourceGenerateDesc(&description, &part, 1));
  TRY(cuGreenCtxCreate(&green[context], description, device, CU_GREEN_CTX_DEFAULT_STREAM));
  return cuCtxFromGreenCtx(&c[context], green[context]);
}
CUresult GreenStream(CUstream* out, int context) {
  return cuGreenCtxStreamCreate(out, green[context], CU_STREAM_NON_BLOCKING, 0);
}
CUresult EndGreen(int context) { return cuGreenCtxDestroy(green[context]); }
#else
CUresult MakeGreen(int, int) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult GreenStream(CUstream*, int) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult EndGreen(int) { return CUDA_ERROR_NOT_SUPPORTED; }
#endif

CUresult PollStream(CUstream stream) {
  CUresult result;
  while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
    if (Simulated()) TRY(cuStreamSynchronize(stream));  // virtual time stands still in a query
  }
  return result;
}
CUresult PollEvent(CUevent event) {
  CUresult result;
  while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
    if (Simulated()) TRY(cuEventSynchronize(event));
  }
  return result;
}

CUresult FillHost(void* memory, size_t bytes, uint64_t seed) {
  auto* out = static_cast<unsigned char*>(memory);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (seed + i) * 0x9E3779B97F4A7C15ull;
    std::memcpy(out + i, &word, std::min<size_t>(8, bytes - i));
  }
  return CUDA_SUCCESS;
}

CUresult Digest(CUdeviceptr at, size_t bytes, uint64_t* out) {
  if (Simulated()) {
    *out = g_digest(at, bytes);
    return CUDA_SUCCESS;
  }
  std::vector<unsigned char> copy(bytes);
  TRY(cuMemcpyDtoH(copy.data(), at, bytes));
  *out = HashBytes(copy.data(), bytes);
  return CUDA_SUCCESS;
}
CUresult CheckBlock(int block, size_t bytes) {
  uint64_t digest = 0;
  TRY(Digest(p[block], bytes, &digest));
  Record("block %d: %016llx", block, static_cast<unsigned long long>(digest));
  return CUDA_SUCCESS;
}
CUresult CheckHost(int block, size_t bytes) {
  Record("host %d: %016llx", block, static_cast<unsigned long long>(HashBytes(h[block], bytes)));
  return CUDA_SUCCESS;
}

CUresult AskRange(CUdeviceptr block, size_t offset, size_t bytes) {
  CUdeviceptr base = 0;
  size_t size = 0;
  TRY(cuMemGetAddressRange(&base, &size, block + offset));
  Record("range: begins at the block %d, holds it %d", base == block, size >= bytes);
  return CUDA_SUCCESS;
}
CUresult AskAttributes(int block, size_t offset) {
  CUmemorytype type{};
  int ordinal = -1;
  unsigned char managed[8] = {7, 7, 7, 7, 7, 7, 7, 7};  // an int: the driver writes four bytes
  CUdeviceptr start = 0;
  CUcontext context = nullptr;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_CONTEXT};
  void* values[] = {&type, &ordinal, managed, &start, &context};
  TRY(cuPointerGetAttributes(5, names, values, p[block] + offset));
  const long known = std::find(c, c + kMaxContexts, context) - c;
  Record("attributes: type %d, GPU %d, managed %d %d, begins at the block %d, context %ld", static_cast<int>(type),
         ordinal, managed[0] + managed[3], managed[4], start == p[block], context == nullptr ? -1 : known);
  return CUDA_SUCCESS;
}
CUresult AskMemory() {
  size_t free = 0, total = 0;
  TRY(cuMemGetInfo(&free, &total));
  Record("memory: free is within total %d", free <= total && total > 0);
  return CUDA_SUCCESS;
}
CUresult AskStream(CUstream stream) {
  unsigned flags = 9;
  int priority = 9;
  CUcontext context = nullptr;
  TRY(cuStreamGetFlags(stream, &flags));
  TRY(cuStreamGetPriority(stream, &priority));
  TRY(cuStreamGetCtx(stream, &context));
  Record("stream: flags %u, priority %d, context %ld", flags, priority,
         static_cast<long>(std::find(c, c + kMaxContexts, context) - c));
  return CUDA_SUCCESS;
}
CUresult Note(CUresult result) {
  Record("result %d", static_cast<int>(result));
  return CUDA_SUCCESS;
}

CUresult CheckBudget() {
  const char* text = std::getenv("SLUICE_GPU_MEMORY");
  if (text == nullptr || g_stats == nullptr) return CUDA_SUCCESS;
  const uint64_t budget = std::strtoull(text, nullptr, 10);
  int count = 0;
  TRY(cuDeviceGetCount(&count));
  for (int device = 0; device < count; ++device) {
    struct simgpu_stats figures{};
    figures.size = sizeof figures;
    if (g_stats(device, &figures) != 0) continue;
    // Idle, so that nothing is in flight; a kernel may have faulted in bytes beyond the budget. Memory of the other GPU
    // that this one has used may lie here, within the other's budget.
    if (figures.resident_bytes > budget * static_cast<uint64_t>(count) + budget / 2 + (64 << 20)) {
      Record("over budget: GPU %d holds %llu bytes", device, static_cast<unsigned long long>(figures.resident_bytes));
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace differential
