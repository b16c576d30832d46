// Memory and events of other processes. An import has the contents that the memory had when it was exported: processes
// share no bytes here. An event's state is in memory that both processes map.
#include "ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "call.h"

using simgpu::Allocation;
using simgpu::MemoryKind;
using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;

namespace {

struct SavedSegment {
  uint64_t begin, length, value, shift;
  uint32_t kind;
};
struct SavedMemory {
  uint64_t size, segments;
  int32_t card;
};
// The contents of a handle of 64 bytes.
struct HandleText {
  int32_t process, file;
  uint64_t magic;
  uint64_t offset;  // of memory in its 2 MiB: the importer's address has the same
};
constexpr uint64_t kHandleMagic = 0x73696d6970633031;

bool WriteAll(int file, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes != 0) {
    const ssize_t n = write(file, at, bytes);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}
bool ReadAll(int file, uint64_t* offset, void* to, size_t bytes) {
  const ssize_t n = pread(file, to, bytes, static_cast<off_t>(*offset));
  *offset += bytes;
  return n == static_cast<ssize_t>(bytes);
}

template <typename Handle>
void Tell(Handle* handle, int file, uint64_t offset = 0) {
  static_assert(sizeof *handle >= sizeof(HandleText));
  std::memset(handle, 0, sizeof *handle);
  const HandleText text{getpid(), file, kHandleMagic, offset};
  std::memcpy(handle, &text, sizeof text);
}
template <typename Handle>
CUresult OpenFile(const Handle& handle, int* file, uint64_t* offset = nullptr) {
  HandleText text;
  std::memcpy(&text, &handle, sizeof text);
  NEED_ARG(text.magic == kHandleMagic);
  if (offset != nullptr) *offset = text.offset;
  NEED(text.process != getpid(), CUDA_ERROR_INVALID_CONTEXT);  // not in the process that exported it
  const std::string path = "/proc/" + std::to_string(text.process) + "/fd/" + std::to_string(text.file);
  *file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  NEED(*file >= 0, CUDA_ERROR_MAP_FAILED);
  return CUDA_SUCCESS;
}

// An allocation with saved contents; it is the exporter's that counts against the card.
CUresult Import(int file, uint64_t offset, CUcontext context, MemoryKind kind, void* owner, CUdeviceptr* out) {
  simgpu::ContentMap content{0};
  uint64_t size = 0;
  int card = 0;
  NEED_ARG(simgpu::LoadContents(file, &content, &size, &card));
  const uint64_t first = Sim().memory().Reserve(offset + size, simgpu::kBlockBytes), address = first + offset;
  NEED(first != 0, CUDA_ERROR_OUT_OF_MEMORY);
  if (offset != 0) Sim().memory().Unreserve(first, offset);
  Allocation* a = Sim().memory().Add(address, size, kind, card);
  a->requested = size;
  a->counted = false;
  a->owner = owner;
  *a->content = std::move(content);
  if (kind == MemoryKind::kUnmanaged) context->memory[address] = a;
  *out = address;
  return CUDA_SUCCESS;
}

// A handle that is opened again has the same address, until it is closed as often.
struct OpenedMemory {
  CUcontext context;
  CUipcMemHandle handle;
  int count;
};
std::map<CUdeviceptr, OpenedMemory>& Opened() {
  static auto* all = new std::map<CUdeviceptr, OpenedMemory>;
  return *all;
}

bool MapEvent(CUevent e, int file) {
  void* page = mmap(nullptr, sizeof(SimSharedEvent), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) return false;
  e->shared = static_cast<SimSharedEvent*>(page);
  return true;
}

}  // namespace

namespace simgpu {

bool IsOpenedMemory(CUdeviceptr p) { return Opened().count(p) != 0; }

int SaveContents(const ContentMap& content, uint64_t size, int card) {
  std::vector<SavedSegment> list;
  std::vector<std::pair<std::shared_ptr<Bytes>, std::pair<uint64_t, uint64_t>>> data;
  content.Visit(0, size, [&](const Segment& g, uint64_t begin, uint64_t end) {
    const uint64_t shift = begin - static_cast<uint64_t>(g.origin);
    // Parts of one copy stay one part: a digest takes them together.
    if (g.kind == Segment::kBytes && !list.empty() && list.back().kind == Segment::kBytes &&
        data.back().first == g.bytes && list.back().shift + list.back().length == shift) {
      list.back().length += end - begin;
      data.back().second.second += end - begin;
      return;
    }
    list.push_back({begin, end - begin, g.value, shift, g.kind});
    if (g.kind == Segment::kBytes) data.push_back({g.bytes, {shift, end - begin}});
  });
  const int file = memfd_create("simgpu memory", MFD_CLOEXEC);
  if (file < 0) return -1;
  const SavedMemory head{size, list.size(), card};
  bool is_good = WriteAll(file, &head, sizeof head) && WriteAll(file, list.data(), list.size() * sizeof list[0]);
  for (const auto& [bytes, range] : data) is_good &= WriteAll(file, bytes->data.get() + range.first, range.second);
  if (is_good) return file;
  close(file);
  return -1;
}

bool LoadContents(int file, ContentMap* content, uint64_t* size, int* card) {
  uint64_t at = 0;
  SavedMemory head;
  if (!ReadAll(file, &at, &head, sizeof head)) return false;
  std::vector<SavedSegment> list(head.segments);
  if (!ReadAll(file, &at, list.data(), list.size() * sizeof list[0])) return false;
  *content = ContentMap(head.size);
  for (const SavedSegment& saved : list) {
    Segment g;
    g.kind = static_cast<Segment::Kind>(saved.kind);
    g.value = saved.value;
    g.origin = static_cast<int64_t>(saved.begin - saved.shift);
    if (g.kind == Segment::kBytes) {
      g.bytes = std::make_shared<Bytes>(saved.length);
      g.origin = static_cast<int64_t>(saved.begin);
      if (!ReadAll(file, &at, g.bytes->data.get(), saved.length)) return false;
    }
    content->Assign(saved.begin, saved.begin + saved.length, g);
  }
  *size = head.size;
  *card = head.card;
  return true;
}

void RecordShared(Call& call, CUevent e, CUstream stream) {
  if (e->shared == nullptr) return;
  Op* op = Sim().NewOp(OpKind::kAction);
  op->action = [](void* shared, uint64_t number) {
    auto& done = static_cast<SimSharedEvent*>(shared)->done;
    uint64_t before = done.load();
    while (before < number && !done.compare_exchange_weak(before, number)) {
    }
  };
  op->action_a = e->shared;
  op->action_b = e->shared->recorded.fetch_add(1) + 1;
  Sim().Submit(call.lock, stream->sim, op);
}

bool WaitShared(Call& call, CUevent e, CUstream stream) {
  if (e->shared == nullptr) return false;
  Op* op = Sim().NewOp(OpKind::kWaitValue);
  op->value.address = reinterpret_cast<uint64_t>(&e->shared->done);
  op->value.value = e->shared->recorded.load();
  op->value.wide = true;
  Sim().Submit(call.lock, stream->sim, op);
  return true;
}

bool IsSharedDone(CUevent e) { return e->shared->done.load() >= e->shared->recorded.load(); }

}  // namespace simgpu

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr p) {
  BEGIN(1000);
  NEED_ARG(handle != nullptr);
  Allocation* a = simgpu::FindAllocation(p);
  NEED_ARG(a != nullptr && a->kind == MemoryKind::kUnmanaged && a->counted);
  Sim().CatchUp(call.lock);
  const int file = simgpu::SaveContents(*a->content, a->size, a->card);
  NEED(file >= 0, CUDA_ERROR_OUT_OF_MEMORY);
  Tell(handle, file, a->base % simgpu::kBlockBytes);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  BEGIN_UNSAFE(20000);
  NEED_OWNER();
  NEED_ARG(out != nullptr && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  for (auto& [address, one] : Opened()) {
    if (one.context != context || simgpu::FindAllocation(address) == nullptr ||
        std::memcmp(&one.handle, &handle, sizeof handle) != 0)
      continue;
    ++one.count;
    *out = address;
    return CUDA_SUCCESS;
  }
  // One context of a card alone opens the memory of a process (H100, driver 580).
  for (const auto& [address, one] : Opened()) {
    const bool is_of_process = std::memcmp(&one.handle, &handle, sizeof(HandleText::process)) == 0;
    NEED(one.context == context || one.context->card != context->card || !is_of_process, CUDA_ERROR_INVALID_HANDLE);
  }
  int file = -1;
  uint64_t offset = 0;
  if (const CUresult r = OpenFile(handle, &file, &offset); r != CUDA_SUCCESS) return r;
  const CUresult r = Import(file, offset, context, MemoryKind::kUnmanaged, context, out);
  close(file);
  if (r == CUDA_SUCCESS) Opened()[*out] = {context, handle, 1};
  return r;
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags) {
  return cuIpcOpenMemHandle_v2(out, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr p) {
  BEGIN_UNSAFE(5000);
  NEED_CONTEXT();
  const auto found = Opened().find(p);
  NEED_ARG(found != Opened().end());
  if (--found->second.count != 0) return CUDA_SUCCESS;
  Opened().erase(found);
  Sim().CatchUp(call.lock);
  Sim().WaitContext(call.lock, nullptr, simgpu::FindAllocation(p)->card, "a device (cuIpcCloseMemHandle)");
  return simgpu::FreeNow(p);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent e) {
  BEGIN(1000);
  NEED_ARG(handle != nullptr);
  NEED(simgpu::ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  NEED((e->flags & CU_EVENT_INTERPROCESS) != 0, CUDA_ERROR_INVALID_HANDLE);
  if (e->shared == nullptr) {
    e->shared_file = memfd_create("simgpu event", MFD_CLOEXEC);
    NEED(e->shared_file >= 0 && ftruncate(e->shared_file, sizeof(SimSharedEvent)) == 0 && MapEvent(e, e->shared_file),
         CUDA_ERROR_OUT_OF_MEMORY);
  }
  Tell(handle, e->shared_file);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  BEGIN(5000);
  NEED_OWNER();
  NEED_ARG(out != nullptr);
  int file = -1;
  if (const CUresult r = OpenFile(handle, &file); r != CUDA_SUCCESS) return r;
  auto e = std::make_unique<CUevent_st>();
  e->context = context;
  e->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  e->shared_file = file;
  NEED(MapEvent(e.get(), file), CUDA_ERROR_MAP_FAILED);
  *out = e.release();
  context->events.insert(*out);
  return CUDA_SUCCESS;
}

// A pool that is exported: another process imports it by the file, and its memory by data of 64 bytes.
CUresult cuMemPoolExportToShareableHandle(void* out, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  BEGIN(5000);
  NEED_ARG(out != nullptr && pool != nullptr && pool->magic == kPoolMagic && flags == 0);
  NEED_ARG(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && (pool->props.handleTypes & type) != 0);
  const int file = memfd_create("simgpu pool", MFD_CLOEXEC);
  NEED(file >= 0 && WriteAll(file, &pool->props, sizeof pool->props), CUDA_ERROR_OUT_OF_MEMORY);
  *static_cast<int*>(out) = file;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void* handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  BEGIN(5000);
  NEED_ARG(out != nullptr && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0);
  CUmemPoolProps props{};
  uint64_t at = 0;
  NEED_ARG(ReadAll(static_cast<int>(reinterpret_cast<intptr_t>(handle)), &at, &props, sizeof props));
  NEED_CARD(props.location.id);
  auto* pool = new CUmemPoolHandle_st;
  pool->card = card;
  pool->props = props;
  pool->is_imported = true;
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* out, CUdeviceptr p) {
  BEGIN(1000);
  const Allocation* a = simgpu::FindAllocation(p);
  NEED_ARG(out != nullptr && a != nullptr && a->kind == MemoryKind::kPool && a->base == p);
  NEED_ARG(static_cast<CUmemoryPool>(a->owner)->props.handleTypes != CU_MEM_HANDLE_TYPE_NONE);
  Sim().CatchUp(call.lock);
  const int file = simgpu::SaveContents(*a->content, a->size, a->card);
  NEED(file >= 0, CUDA_ERROR_OUT_OF_MEMORY);
  Tell(out, file);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* out, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  BEGIN(5000);
  NEED_OWNER();
  NEED_ARG(out != nullptr && data != nullptr && pool != nullptr && pool->magic == kPoolMagic && pool->is_imported);
  int file = -1;
  if (const CUresult r = OpenFile(*data, &file); r != CUDA_SUCCESS) return r;
  const CUresult r = Import(file, 0, context, MemoryKind::kPool, pool, out);
  close(file);
  return r;
}

}  // extern "C"
