#include "hooklib/engine/execute/value_cells.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/observe/uvm_tools.h"

namespace sluice::value_cells {

namespace {

constexpr size_t kPageBytes = 4096, kCellBytes = 16;
constexpr size_t kPassed = 8;  // the second word's offset

// Of one context that owns memory: a page stays registered there when a green context ends.
struct Place {
  CUcontext context = nullptr;
  std::vector<void*> pages;
  std::vector<Cell> free, queued;  // queued: free when their copy is over
  CUdeviceptr sink = 0;            // ends with the context
};

// No call of the driver's is made under the lock: the driver gives cells back while it holds its own.
Mutex g_mutex;
std::map<uint64_t, Place>& Places() SLUICE_REQUIRES(g_mutex) {
  static auto& places = *new std::map<uint64_t, Place>();  // by number: a context's handle may be given again
  return places;
}
std::vector<void*>& FreePages() SLUICE_REQUIRES(g_mutex) {
  static auto& pages = *new std::vector<void*>();  // of contexts that are gone
  return pages;
}
uint64_t g_last_place SLUICE_GUARDED_BY(g_mutex) = 0;

uint64_t NumberOf(CUcontext context) SLUICE_REQUIRES(g_mutex) {
  for (const auto& [number, place] : Places()) {
    if (place.context == context) return number;
  }
  Places()[++g_last_place].context = context;
  return g_last_place;
}

bool IsOver(const Cell& cell) {
  return __atomic_load_n(reinterpret_cast<uint32_t*>(cell.value) + kPassed / sizeof(uint32_t), __ATOMIC_ACQUIRE) ==
         cell.turn;
}

void Sweep(Place* place) {
  const auto over =
      std::stable_partition(place->queued.begin(), place->queued.end(), [](const Cell& cell) { return !IsOver(cell); });
  place->free.insert(place->free.end(), over, place->queued.end());
  place->queued.erase(over, place->queued.end());
}

// A page that stays mapped whatever becomes of its context, and serves another one then.
void* TakePage() {
  MutexLock lock(g_mutex);
  if (FreePages().empty()) return uvm_tools::SharedPages(kPageBytes);
  void* const page = FreePages().back();
  FreePages().pop_back();
  std::memset(page, 0, kPageBytes);
  return page;
}

std::vector<Cell> MakePage(uint64_t number) {
  if (!g_real.cuMemHostRegister_v2 || !g_real.cuMemHostGetDevicePointer_v2) return {};
  RelaxedCapture relaxed;
  void* const page = TakePage();
  CUdeviceptr device = 0;
  if (!page || g_real.cuMemHostRegister_v2(page, kPageBytes, CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS ||
      g_real.cuMemHostGetDevicePointer_v2(&device, page, 0) != CUDA_SUCCESS)
    return {};
  {
    MutexLock lock(g_mutex);
    if (const auto place = Places().find(number); place != Places().end()) place->second.pages.push_back(page);
  }
  std::vector<Cell> cells;
  for (size_t at = 0; at < kPageBytes; at += kCellBytes)
    cells.push_back({static_cast<uint64_t*>(page) + at / sizeof(uint64_t), device + at + kPassed, 0, number});
  return cells;
}

// Which owns the memory of the current context.
CUcontext HomeOf(CUcontext context) {
  Device* const device = CurrentDevice();
  RelaxedCapture relaxed;
  return device ? device->MemoryContext(context) : context;
}

}  // namespace

std::vector<Cell> Take(CUcontext context, size_t count) {
  context = HomeOf(context);
  uint64_t number;
  while (true) {
    {
      MutexLock lock(g_mutex);
      number = NumberOf(context);
      Place& place = Places()[number];
      if (place.free.size() < count) Sweep(&place);
      if (place.free.size() >= count) {
        std::vector<Cell> taken(place.free.end() - static_cast<ptrdiff_t>(count), place.free.end());
        place.free.resize(place.free.size() - count);
        return taken;
      }
    }
    const std::vector<Cell> page = MakePage(number);
    if (page.empty()) return {};
    GiveBack(page);
  }
}

CUdeviceptr Sink(CUcontext context) {
  context = HomeOf(context);
  {
    MutexLock lock(g_mutex);
    if (const CUdeviceptr sink = Places()[NumberOf(context)].sink) return sink;
  }
  RelaxedCapture relaxed;
  CUdeviceptr made = 0;
  if (g_real.cuMemAllocManaged(&made, sizeof(uint64_t), CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS) return 0;
  MutexLock lock(g_mutex);
  CUdeviceptr& sink = Places()[NumberOf(context)].sink;
  if (!sink) sink = made;  // else another thread's is used: to free this one would wait for the GPU
  return sink;
}

void GiveBack(const std::vector<Cell>& cells) {
  MutexLock lock(g_mutex);
  for (const Cell& cell : cells) {
    if (const auto place = Places().find(cell.place); place != Places().end()) place->second.free.push_back(cell);
  }
}

CUresult Send(const Stream& stream, CUstream handle, bool per_thread, uint64_t value,
              const std::function<CUresult(const void*)>& copy) {
  const ContextScope scope(stream.owner);
  std::vector<Cell> cells = Take(stream.owner, 1);
  if (cells.empty()) return CUDA_ERROR_NOT_SUPPORTED;
  Cell& cell = cells.front();
  *cell.value = value;
  const CUresult result = copy(cell.value);
  if (result != CUDA_SUCCESS) {
    GiveBack(cells);
    return result;
  }
  // If this fails, the cell is never used again: nothing tells that its copy is over.
  if ((per_thread ? g_real.cuStreamWriteValue32_v2_ptsz : g_real.cuStreamWriteValue32_v2)(
          handle, cell.passed, ++cell.turn, CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS)
    return CUDA_SUCCESS;
  MutexLock lock(g_mutex);
  if (const auto place = Places().find(cell.place); place != Places().end()) place->second.queued.push_back(cell);
  return CUDA_SUCCESS;
}

void ForgetContext(CUcontext context) {
  MutexLock lock(g_mutex);
  std::erase_if(Places(), [&](const auto& entry) SLUICE_REQUIRES(g_mutex) {
    if (entry.second.context != context) return false;
    FreePages().insert(FreePages().end(), entry.second.pages.begin(), entry.second.pages.end());
    return true;
  });
}

}  // namespace sluice::value_cells
