#include "hooklib/engine/device/device.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/host_limits.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/libraries/library_calls.h"

namespace sluice {

using memory::Extent;
using memory::kChunkBytes;

namespace {
// More than can be addressed: rounded up, or added to what there is, it would come out small.
bool Absurd(uint64_t bytes) { return bytes >> 56 != 0; }
}  // namespace

Device::Device(CUdevice number) : ordinal(number), fences(this), residency(this, &fences) {
  CUuuid raw{};
  const auto get_uuid = g_real.cuDeviceGetUuid_v2 ? g_real.cuDeviceGetUuid_v2 : g_real.cuDeviceGetUuid;
  if (get_uuid && get_uuid(&raw, number) == CUDA_SUCCESS) {
    const auto* b = reinterpret_cast<const unsigned char*>(raw.bytes);
    std::memcpy(raw_uuid_, b, sizeof raw_uuid_);
    char text[SLUICE_UUID_CHARS];
    std::snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                  b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    uuid = text;
  }
  size_t bytes = 0;
  if (g_real.cuDeviceTotalMem_v2) g_real.cuDeviceTotalMem_v2(&bytes, number);
  total = bytes;
  int concurrent = 0, pageable_tables = 0;
  g_real.cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, number);
  // Coherent platforms (Grace Hopper) use the host's page tables: residency is the kernel's there, not ours.
  g_real.cuDeviceGetAttribute(&pageable_tables, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                              number);
  if (GetConfig().plain) {
    unmanaged_because = "SLUICE_PLAIN=1";
  } else if (!concurrent) {
    unmanaged_because = "this card has no concurrent managed access (vGPU, WSL2)";
  } else if (pageable_tables) {
    unmanaged_because = "the card uses the host's page tables";
  } else if (!g_real.cuFuncGetParamInfo && !g_real.cuKernelGetParamInfo) {
    // Nobody would know what kernels touch: pages would come by faults alone, past any budget.
    unmanaged_because = "this driver does not tell kernels' parameters (550 and later do)";
  }
  managed = !*unmanaged_because;

  const settings::Settings& said = GetConfig().settings;
  std::snprintf(budget.uuid, sizeof budget.uuid, "%s", uuid.c_str());
  budget.budget_bytes = said.gpu_memory                               ? std::min(*said.gpu_memory, total)
                        : said.gpu_percent && *said.gpu_percent < 100 ? total / 100 * *said.gpu_percent
                                                                      : total;
  budget.guaranteed_bytes = budget.budget_bytes;
  budget.limit_bytes = said.memory_limit ? *said.memory_limit : total;
  budget.host_bytes = UINT64_MAX;
  budget.memory_factor = said.memory_factor ? *said.memory_factor : 0;
  budget.prefetch = static_cast<uint8_t>(said.prefetch.value_or(settings::Prefetch::kPredict));
  budget.visible = static_cast<uint8_t>(said.visible.value_or(settings::Visible::kBudget));
  budget.log_level = static_cast<uint8_t>(GetConfig().log_level);
  budget.compute_limit = 1000000;
  residency.set_prefetch(static_cast<policy::Prefetch>(budget.prefetch));
  residency.set_can_discard(g_real.cuMemDiscardBatchAsync != nullptr && GetConfig().discard);
  residency.set_repopulates(GetConfig().overwrites);
  residency.set_remote_access(GetConfig().host_access);
  residency.set_read_mostly(managed && GetConfig().read_mostly);
  residency.set_capacity(Capacity());
}

uint64_t Device::Capacity() const {
  const uint64_t held = plain.load(std::memory_order_relaxed);
  const uint64_t room = budget.budget_bytes > held ? budget.budget_bytes - held : 0;
  if (live_bytes + held <= budget.budget_bytes && !pressure.lowered() && ceiling_ >= 100) return room;
  return std::min(room, budget.budget_bytes / 100 * Factor());
}

uint32_t Device::Factor() const {
  return std::min(pressure.Of(Default()), std::max(ceiling_, policy::Pressure::kFloor));
}

// PUMP's four defaults (nothing seen, the allocator's reports, library extents, both): the less is seen of what kernels
// touch, the more room is left for what was not seen.
uint32_t Device::Default() const {
  if (budget.memory_factor) return budget.memory_factor;
  return extents_seen ? 100 : reports_seen ? 80 : 60;
}

void Device::UpdateMode() {
  residency.set_capacity(Capacity());
  const uint64_t held = plain.load(std::memory_order_relaxed);
  const uint64_t usable = total - total / 16;  // contexts and the driver's own take the rest
  residency.set_max_resident(usable > held ? usable - held : 0);
  if (managed && requested_bytes + held > budget.budget_bytes) StartActive();
}

void Device::StartActive() {
  if (!active.exchange(true)) {
    WantLibraryCalls();
    StartCounting();
    residency.set_names_launches(LogEnabled(settings::LogLevel::kDebug));
    residency.NoteUnseenUse();
    if (CountLaunches() != unseen_launches_) residency.ForgetAllCopies();
    SLUICE_LOG(kInfo, "%s: %.2f GiB requested, budget %.2f GiB: residency is managed from here on", uuid.c_str(),
               static_cast<double>(requested_bytes) / 0x1p30, static_cast<double>(budget.budget_bytes) / 0x1p30);
  }
}

Context* Device::ContextFor(CUcontext handle) {
  std::unique_ptr<Context>& entry = contexts[handle];
  if (!entry) {
    entry = std::make_unique<Context>();
    entry->handle = handle;
    entry->device = this;
    entry->arenas = std::make_unique<memory::ArenaAllocator>(&fences);
    entry->held = std::make_unique<memory::ArenaAllocator>(&fences);
  }
  return entry.get();
}

CUstream Device::Housekeeping(Context* context) {
  if (!context->housekeeping) g_real.cuStreamCreate(&context->housekeeping, CU_STREAM_NON_BLOCKING);
  return context->housekeeping;
}

Stream* Device::StreamById(memory::StreamId id) {
  if (id == 0 || id > streams.size()) return nullptr;
  Stream* stream = streams[id - 1].get();
  return stream->context ? stream : nullptr;
}

uint64_t Device::HostAllowance() {
  return std::min<uint64_t>(budget.host_bytes, HostMemoryLeft() + residency.stats().host_bytes);
}

template <typename F>
bool Device::AwaitShare(std::unique_lock<memory::CountedLock>* lock, uint64_t bytes, F fits) {
  // A borrower gives up 20 GB/s; one that is stopped gives nothing, and then a wait a budget is enough.
  constexpr int kPatienceMs = 3000, kStepMs = 2, kTellMs = 100;
  const bool agent = budget.generation != 0;
  if (!agent || waited_in_vain_ == budget.generation || g_captures.load() > 0) return false;
  bool came = false;
  awaited_bytes_ += bytes;
  for (int ms = 0; ms < kPatienceMs && !came; ms += kStepMs) {
    lock->unlock();
    if (ms % kTellMs == 0) PublishAll();  // what is wanted is what the agent calls back for
    const timespec pause{0, kStepMs * 1'000'000L};
    nanosleep(&pause, nullptr);
    lock->lock();
    came = fits();
  }
  awaited_bytes_ -= bytes;
  if (!came) waited_in_vain_ = budget.generation;
  return came;
}

// What is small stays on the card, in memory of cuMemAlloc's own kind: the driver takes 3 us more for a memset of 64
// bytes and 4 to 8 for a copy of 4 where memory is managed (H200, docs/benchmarks.md), a PyTorch step has a hundred
// memsets, and all that is small together is a hundredth of the budget. It counts as plain memory. PyTorch's segments
// for small tensors are of one chunk.
std::optional<memory::Va> Device::AllocateUnevictable(Context* context, uint64_t bytes, memory::StreamId stream) {
  constexpr uint64_t kMost = uint64_t{64} << 20;
  memory::ArenaAllocator& held = *context->held;
  const uint64_t most = std::min(kMost, budget.guaranteed_bytes / 64);
  if (bytes > kChunkBytes || most < kChunkBytes) return std::nullopt;
  if (const auto va = held.Allocate(bytes, stream)) return va;
  const uint64_t taken = plain.load(std::memory_order_relaxed) + kChunkBytes;
  if (held.requested_bytes() + kChunkBytes > most || taken > budget.budget_bytes ||
      allocated_bytes + taken > budget.limit_bytes)
    return std::nullopt;
  CUdeviceptr base = 0;
  CUresult result;
  {
    RelaxedCapture relaxed;
    result = g_real.cuMemAlloc_v2(&base, kChunkBytes);
  }
  if (result != CUDA_SUCCESS) return std::nullopt;
  if (base % kChunkBytes) {
    g_real.cuMemFree_v2(base);
    return std::nullopt;
  }
  plain.fetch_add(kChunkBytes);
  held.AddArena({base, kChunkBytes}, bytes);
  context->held_list.emplace(base, kChunkBytes);
  residency.chunks().AddHeld({base, kChunkBytes});
  UpdateMode();
  return held.Allocate(bytes, stream);
}

Refusal Device::Grow(Context* context, uint64_t bytes) {
  const uint64_t size = context->arenas->GrowthFor(bytes);
  const uint64_t cap = GetConfig().managed_limit;
  if (cap && requested_bytes + size > cap) return Refusal::kManagedLimit;
  CUdeviceptr base = 0;
  CUresult result;
  {
    RelaxedCapture relaxed;
    result = g_real.cuMemAllocManaged(&base, size, CU_MEM_ATTACH_GLOBAL);
  }
  if (result != CUDA_SUCCESS) {
    SLUICE_LOG(kDebug, "cuMemAllocManaged(%llu) gave %d", static_cast<unsigned long long>(size), result);
    return Refusal::kDriver;
  }
  if (base % kChunkBytes) {  // never seen; a chunk must be one of the driver's own blocks
    g_real.cuMemFree_v2(base);
    return Refusal::kDriver;
  }
  const Extent arena{base, size};
  senders::Cut(arena);
  requested_bytes += size;
  UpdateMode();
  bool populated = false;
  if (residency.resident_bytes() + size <= residency.capacity() && g_captures.load() == 0) {
    // As cuMemAlloc does: the pages are on the card when the call returns, so that no kernel faults on memory that
    // fits.
    populated = FetchRuns({arena}, ordinal, Housekeeping(context)) == CUDA_SUCCESS &&
                g_real.cuStreamSynchronize(Housekeeping(context)) ==
                    CUDA_SUCCESS;  // our own prefetch alone, no work of the application
  }
  context->arenas->AddArena(arena, bytes);
  context->arena_list.emplace(base, size);
  residency.AddArena(arena, populated);
  if (!peers_.empty()) AdvisePeers(arena, ordinal, peers_);
  return Refusal::kNone;
}

void Device::ReturnHeld(Context* context) {
  memory::ArenaAllocator& held = *context->held;
  if (held.requested_bytes() <= 2 * held.live_bytes() + 4 * kChunkBytes) return;
  for (const Extent& arena : held.TakeSurplus(true)) {
    residency.chunks().RemoveArena(arena.base);
    context->held_list.erase(arena.base);
    GiveUnmanaged(arena.bytes);
    g_real.cuMemFree_v2(arena.base);
  }
}

void Device::ReturnArenas(Context* context, bool all) {
  for (const Extent& arena : context->arenas->TakeSurplus(all)) {
    residency.RemoveArena(arena);
    context->arena_list.erase(arena.base);
    requested_bytes -= arena.bytes;
    g_real.cuMemFree_v2(arena.base);
  }
}

// Before the application is told that there is no memory: what it has freed may still wait for the GPU, where the real
// cuMemFree would have waited itself (PyTorch frees its cache and asks again). Bounded, and without the lock.
std::optional<memory::Va> Device::LastResort(std::unique_lock<memory::CountedLock>* lock, Context* context,
                                             uint64_t bytes) {
  std::optional<memory::Va> va;
  if (g_captures.load() > 0) return va;
  for (int tries = 0; tries < 2000; ++tries) {
    ++look;
    fences.Close();
    ReturnArenas(context, true);
    va = context->arenas->Allocate(bytes);
    if (!va && Grow(context, bytes) == Refusal::kNone) va = context->arenas->Allocate(bytes);
    if (va || !context->arenas->waiting()) return va;
    lock->unlock();
    const timespec pause{0, 1000000};
    nanosleep(&pause, nullptr);
    lock->lock();
  }
  return va;
}

CUresult Device::Allocate(uint64_t bytes, bool app_managed, CUdeviceptr* result, memory::StreamId stream) {
  CUcontext handle = nullptr;
  if (g_real.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle) return CUDA_ERROR_INVALID_CONTEXT;
  std::unique_lock lock(mutex);
  ++look;
  Context* context = ContextFor(handle);
  const uint64_t size = memory::ArenaAllocator::SizeFor(bytes);
  // What does not fit the guarantee lies in host memory sooner or later: a borrowed budget is called back, and a
  // guarantee that is lent now comes back too.
  const auto beyond = [&] {
    const uint64_t all = allocated_bytes + size + plain.load(std::memory_order_relaxed);
    return all > budget.guaranteed_bytes ? all - budget.guaranteed_bytes : 0;
  };
  // What fits the guarantee asks nothing: the allowance is read from files.
  const auto fits = [&] { return beyond() == 0 || beyond() <= HostAllowance(); };
  Refusal refusal = Refusal::kNone;
  if (Absurd(bytes) || allocated_bytes + size + plain.load(std::memory_order_relaxed) > budget.limit_bytes) {
    refusal = Refusal::kLimit;
  } else if (!fits() && (beyond() <= budget.host_bytes || !AwaitShare(&lock, size, fits))) {
    refusal = Refusal::kHost;
  }
  std::optional<memory::Va> va;
  bool held = false;
  if (refusal == Refusal::kNone) {
    if (!app_managed) va = AllocateUnevictable(context, bytes, stream);
    held = va.has_value();
    if (!va) va = context->arenas->Allocate(bytes, stream);
    if (!va) {
      refusal = Grow(context, bytes);
      if (refusal == Refusal::kNone) {
        va = context->arenas->Allocate(bytes);
      } else {
        va = LastResort(&lock, context, bytes);
      }
    }
  }
  if (!va) {
    Say(refusal, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory::Allocation allocation;
  allocation.bytes = bytes;
  allocation.id = (static_cast<uint64_t>(ordinal) << 56 | uint64_t{1} << 55) + next_id_++;
  allocation.app_managed = app_managed;
  managed_seen |= app_managed;
  allocation.captured = g_captures.load(std::memory_order_relaxed) > 0;
  allocation.held = held;
  live.Add(*va, allocation);
  *result = *va;
  if (held) return CUDA_SUCCESS;
  allocated_bytes += size;
  const Extent range{*va, size};
  SetLive(range, true);
  if (app_managed || allocation.captured) residency.Pin(range, true);
  UpdateMode();
  return CUDA_SUCCESS;
}

void Device::SetLive(Extent range, bool alive, Extent owner) {
  if (alive) {
    residency.AddLive(range);
    live_bytes += range.bytes;
    peak_live_bytes = std::max(peak_live_bytes, live_bytes);
  } else {
    residency.RemoveLive(range, owner);
    live_bytes -= range.bytes;
  }
  Withdraw();
}

std::optional<CUresult> Device::Free(CUdeviceptr pointer, memory::StreamId stream) {
  std::lock_guard lock(mutex);
  ++look;
  memory::Va base = 0;
  const memory::Allocation* allocation = live.Find(pointer, &base);
  if (!allocation) return std::nullopt;
  if (base != pointer) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t size = memory::ArenaAllocator::SizeFor(allocation->bytes);
  const Extent range{base, size};
  const bool held = allocation->held;
  ForgetHostCopies(base, size);
  if (!held) residency.NoteFreed(range);
  if (held) {
    // Neither residency's nor counted as managed.
  } else if (allocation->reported) {
    const auto& reports = live.reports();
    for (auto it = reports.lower_bound(base); it != reports.end() && it->first < base + size; ++it)
      SetLive({it->first, it->second}, false);
  } else {
    SetLive(range, false);
  }
  if (!held && (allocation->app_managed || allocation->captured)) residency.Pin(range, false);
  live.Remove(base);
  if (!held) allocated_bytes -= size;
  Context* owner = nullptr;
  for (auto& [handle, context] : contexts) {
    const auto& list = held ? context->held_list : context->arena_list;
    auto it = list.upper_bound(base);
    if (it != list.begin() && base < std::prev(it)->first + std::prev(it)->second) owner = context.get();
  }
  if (!owner) return CUDA_SUCCESS;
  if (held) {
    owner->held->Free(base, size, stream);
    if (!stream) ReturnHeld(owner);
  } else {
    owner->arenas->Free(base, size, stream);
  }
  // The application's own free may wait for the device, so this is the place where arenas go back to the driver.
  ReturnArenas(owner, false);
  UpdateMode();
  return CUDA_SUCCESS;
}

void Device::Report(CUdeviceptr pointer, int64_t bytes) {
  std::lock_guard lock(mutex);
  memory::Va base = 0;
  memory::Allocation* allocation = live.Find(pointer, &base);
  if (!allocation || allocation->app_managed) return;
  if (bytes > 0) reports_seen = true;
  if (allocation->held) return;
  if (g_captures.load(std::memory_order_relaxed) > 0 && !allocation->captured) {
    allocation->captured = true;
    residency.Pin({base, memory::ArenaAllocator::SizeFor(allocation->bytes)}, true);
  }
  const Extent whole{base, memory::ArenaAllocator::SizeFor(allocation->bytes)};
  if (bytes > 0) {
    if (!allocation->reported) SetLive(whole, false, whole);
    if (auto old = live.Unreport(pointer)) SetLive(*old, false, whole);
    const Extent range{pointer, std::min<uint64_t>(static_cast<uint64_t>(bytes), base + allocation->bytes - pointer)};
    if (live.Report(range, base, allocation)) SetLive(range, true);
  } else if (auto range = live.Unreport(pointer)) {
    SetLive(*range, false, whole);
  }
  residency.set_capacity(Capacity());
}

void Device::MarkCaptured(memory::Va va) {
  std::lock_guard lock(mutex);
  memory::Va base = 0;
  memory::Allocation* allocation = live.Find(va, &base);
  if (!allocation || allocation->captured || allocation->held) return;
  allocation->captured = true;
  if (!allocation->app_managed) residency.Pin({base, memory::ArenaAllocator::SizeFor(allocation->bytes)}, true);
}

void Device::AddPeer(CUdevice peer) {
  std::lock_guard lock(mutex);
  if (peer == ordinal || std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) return;
  peers_.push_back(peer);
  RelaxedCapture relaxed;
  // Withdrawn from what prefers to lie on the card, a duplicate would not leave it.
  residency.set_read_mostly(false);
  Withdraw();
  for (const auto& [handle, context] : contexts) {
    for (const auto& [base, size] : context->arena_list) AdvisePeers({base, size}, ordinal, peers_);
  }
}

void Device::LogIfTooLarge(const std::vector<libraries::Reach>& reaches) {
  std::lock_guard lock(mutex);
  if (said_graph_) return;
  std::vector<Extent> all;
  for (const libraries::Reach& reach : reaches) {
    if (const auto extent = Resolve(reach)) all.push_back(*extent);
  }
  std::sort(all.begin(), all.end(), [](const Extent& a, const Extent& b) { return a.base < b.base; });
  uint64_t bytes = 0, end = 0;
  for (const Extent& extent : all) {
    if (extent.end() <= end) continue;
    bytes += extent.end() - std::max(extent.base, end);
    end = extent.end();
  }
  if (bytes <= residency.capacity()) return;
  said_graph_ = true;
  SLUICE_LOG(
      kWarn,
      "%s: a CUDA graph uses %.2f GiB and %.2f GiB can be held: what most of its nodes use stays on the card, the "
      "rest is fetched for each launch, used in host memory or comes by faults, whichever is measured to be the "
      "fastest; a larger fraction or smaller graphs help",
      uuid.c_str(), static_cast<double>(bytes) / 0x1p30, static_cast<double>(residency.capacity()) / 0x1p30);
}

bool Device::TakeUnmanaged(uint64_t bytes) {
  std::unique_lock lock(mutex);
  const auto fits = [&] { return !Absurd(bytes) && plain.load() + bytes <= budget.budget_bytes; };
  // A guarantee that was lent out comes back; what nobody is promised does not.
  const bool owed = !Absurd(bytes) && plain.load() + bytes <= budget.guaranteed_bytes;
  if (!fits() && (!owed || !AwaitShare(&lock, bytes, fits))) {
    Say(Refusal::kLimit, bytes);
    return false;
  }
  plain.fetch_add(bytes);
  UpdateMode();
  lock.unlock();
  MakeRoom();
  return true;
}

void Device::Say(Refusal refusal, uint64_t bytes) {
  bool& said = said_[static_cast<int>(refusal)];
  if (said) return;
  said = true;
  const auto size = [](uint64_t n) { return settings::HumanBytes(n, 2); };
  const std::string want = size(bytes), have = size(allocated_bytes + plain.load());
  switch (refusal) {
    case Refusal::kLimit:
      NotifyAgent(SLUICE_NOTICE_LIMIT_REACHED, uuid.c_str());
      Log(settings::LogLevel::kWarn, "%s: out of memory: %s asked for beside %s; memory-limit is %s, budget %s",
          uuid.c_str(), want.c_str(), have.c_str(), size(budget.limit_bytes).c_str(),
          size(budget.budget_bytes).c_str());
      break;
    case Refusal::kHost:
      Log(settings::LogLevel::kWarn,
          "%s: out of memory: %s asked for beside %s would need more host memory than the container or node has left",
          uuid.c_str(), want.c_str(), have.c_str());
      break;
    case Refusal::kManagedLimit:
      Log(settings::LogLevel::kWarn, "%s: out of memory: %s asked for beside %s; SLUICE_MANAGED_LIMIT is %s",
          uuid.c_str(), want.c_str(), have.c_str(), size(GetConfig().managed_limit).c_str());
      break;
    default:
      Log(settings::LogLevel::kWarn, "%s: out of memory: the driver gave no managed memory", uuid.c_str());
  }
}

void Device::ApplyBudget(const sluice_budget& next) {
  std::lock_guard lock(mutex);
  const bool raised = budget.generation != 0 && next.budget_bytes > budget.budget_bytes;
  raised_until = 0;
  if (raised && next.budget_bytes < live_bytes + plain.load()) ExpectRaise();
  residency.set_budget_rising(raised_until != 0);
  if (next.budget_bytes != budget.budget_bytes) pressure.Restart();
  budget = next;
  if (budget.limit_bytes == 0) budget.limit_bytes = total;
  residency.set_prefetch(static_cast<policy::Prefetch>(std::min<uint8_t>(next.prefetch, 2)));
  g_log_level = static_cast<settings::LogLevel>(std::min<uint8_t>(next.log_level, 3));
  UpdateMode();  // what is held beyond it is sent away by the follower's thread (Evict), and by the launches
}

void Device::View(uint64_t* total_bytes, uint64_t* free_bytes) {
  std::lock_guard lock(mutex);
  ViewUnlocked(total_bytes, free_bytes);
}

void Device::ViewUnlocked(uint64_t* total_bytes, uint64_t* free_bytes) const {
  const uint64_t shown =
      budget.visible == SLUICE_VISIBLE_LIMIT ? std::min(budget.limit_bytes, total) : budget.guaranteed_bytes;
  const uint64_t used = allocated_bytes + plain.load();
  *total_bytes = shown;
  *free_bytes = used < shown ? shown - used : 0;
}

void Device::ContextEnds(CUcontext handle) {
  std::lock_guard lock(mutex);
  const auto it = contexts.find(handle);
  if (it == contexts.end()) return;
  for (const auto& stream : streams) {
    if (stream->context == it->second.get()) senders::Release(stream->out, it->second->cells);
  }
}

void Device::DropContext(CUcontext handle) {
  {
    std::lock_guard lock(mutex);
    if (!contexts.contains(handle)) return;
  }
  tokens.DropContext(handle);
  {
    std::lock_guard lock(mutex);
    const auto it = contexts.find(handle);
    if (it == contexts.end()) return;
    Context* context = it->second.get();
    for (const auto& [base, size] : context->arena_list) {
      for (const memory::Va found : live.In({base, size})) {  // whatever was alive in it is gone with it
        const memory::Allocation* allocation = live.Find(found, nullptr);
        const uint64_t bytes = memory::ArenaAllocator::SizeFor(allocation->bytes);
        if (allocation->reported) {
          for (auto r = live.reports().lower_bound(found); r != live.reports().end() && r->first < found + bytes; ++r)
            live_bytes -= r->second;
        } else {
          live_bytes -= bytes;
        }
        allocated_bytes -= bytes;
        live.Remove(found);
      }
      residency.RemoveArena({base, size});
      requested_bytes -= size;
    }
    for (const auto& [base, size] : context->held_list) {
      for (const memory::Va found : live.In({base, size})) live.Remove(found);
      residency.chunks().RemoveArena(base);
      GiveUnmanaged(size);
    }
    GiveUnmanaged(static_cast<uint64_t>(std::max<int64_t>(context->limits, 0)));
    std::erase_if(waits, [context](const Wait& wait) { return wait.context == context; });
    std::erase_if(probes, [context](const Probe& probe) { return probe.context == context; });
    if (left.context == context) left = {};
    for (const auto& stream : streams) {
      if (stream->context != context) continue;
      if (stream_discard_owner == stream.get()) stream_discard_owner = nullptr;
      stream->context = nullptr;  // events and queues went with the context
      stream->events.clear();
      stream->in = {};
      stream->out = {};
      stream->repopulate = {};
      residency.ForgetStream(stream->id);
    }
    contexts.erase(it);
    ForgetStreamsOf(handle);
    UpdateMode();
  }
  ForgetStreamCache();
}

}  // namespace sluice
