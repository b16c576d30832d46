// Handles and reservations in managed form that become the driver's own, with their contents and at their addresses.
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/queueing_threads.h"
#include "hooklib/engine/device/virtual_memory_state.h"
#include "hooklib/engine/execute/copy_contents.h"
#include "hooklib/engine/execute/eviction_threads.h"
#include "hooklib/engine/observe/log.h"

namespace sluice::virtual_memory {

using memory::Extent;
using memory::Va;

namespace {

using Queued = std::vector<std::pair<Device*, std::vector<memory::Mark>>>;

// Everything that all GPUs were given to do. Nothing: it cannot be told.
std::optional<Queued> QueuedWork() {
  Queued all;
  for (const auto& device : Devices()) {
    DeviceLock lock(device->mutex);
    ++device->poll_epoch;
    for (const auto& stream : device->streams) {
      if (stream->per_thread()) device->RecordEvent(stream.get());
    }
    std::vector<memory::Mark>& marks = all.emplace_back(device.get(), std::vector<memory::Mark>()).second;
    if (!device->MarkAll(&marks)) return std::nullopt;
  }
  return all;
}

bool IsDone(const Queued& work) {
  for (const auto& [device, marks] : work) {
    DeviceLock lock(device->mutex);
    ++device->poll_epoch;
    for (const memory::Mark& mark : marks) {
      if (!device->Done(mark)) return false;
    }
  }
  return true;
}

// The driver's memory of a handle, mapped at some address while it is filled.
class FilledPlace {
 public:
  explicit FilledPlace(const Physical& physical) : bytes_(physical.bytes) {
    const CUmemAccessDesc access{physical.properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result_ = g_real.cuMemAddressReserve(&at_, bytes_, 0, 0, 0);
    if (result_ != CUDA_SUCCESS) return;
    result_ = g_real.cuMemMap(at_, bytes_, 0, physical.real, 0);
    is_mapped_ = result_ == CUDA_SUCCESS;
    if (is_mapped_) result_ = g_real.cuMemSetAccess(at_, bytes_, &access, 1);
  }
  ~FilledPlace() {
    if (is_mapped_) g_real.cuMemUnmap(at_, bytes_);
    if (at_) g_real.cuMemAddressFree(at_, bytes_);
  }
  FilledPlace(const FilledPlace&) = delete;
  FilledPlace& operator=(const FilledPlace&) = delete;
  CUdeviceptr at() const { return at_; }
  CUresult result() const { return result_; }

 private:
  CUdeviceptr at_ = 0;
  uint64_t bytes_;
  bool is_mapped_ = false;
  CUresult result_;
};

// Copies the handle's contents, of managed form, into the driver's memory that it has got. Returns when they are there.
CUresult Fill(const Physical& physical) SLUICE_REQUIRES(g_mutex) {
  const MutexUnlock waiting(g_mutex);
  const RelaxedCapture relaxed;
  const FilledPlace place(physical);
  CUresult result = place.result();
  ContentsCopies copies;
  if (result == CUDA_SUCCESS && physical.copy)
    result = copies.CopyFromHost(place.at(), physical.copy.get(), physical.contents_bytes);
  if (result == CUDA_SUCCESS && physical.at) {
    for (const Extent& part : physical.device->WrittenParts({physical.at, physical.contents_bytes})) {
      result = copies.Copy(place.at() + (part.base - physical.at), part.base, part.bytes);
      if (result != CUDA_SUCCESS) break;
    }
  }
  return result == CUDA_SUCCESS ? copies.Await() : result;
}

void TakeBack(Physical* physical) SLUICE_REQUIRES(g_mutex) {
  Device* const device = physical->device;
  TheState().by_real.erase(physical->real);
  g_real.cuMemRelease(std::exchange(physical->real, 0));
  device->ReleaseUnmanaged(physical->bytes);
  physical->is_charged = device->ChargeHandle(physical->bytes) == Refusal::kNone;
  physical->form = Form::kManaged;
}

// Memory of the driver's for the handle, filled. Not CUDA_SUCCESS: the handle is as it was.
CUresult Convert(Physical* physical, const char* reason) SLUICE_REQUIRES(g_mutex) {
  CUresult result = MakeUnmanaged(physical, reason);
  if (result != CUDA_SUCCESS) return result;
  result = Fill(*physical);
  if (result != CUDA_SUCCESS) TakeBack(physical);
  return result;
}

// The driver counts as many references as the application has.
void CountReferences(const Physical& physical, Va at) {
  CUmemGenericAllocationHandle again = 0;
  for (int i = 1; i < physical.references; ++i)
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes the address as a pointer here
    g_real.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(static_cast<uintptr_t>(at)));
  if (physical.references == 0) g_real.cuMemRelease(physical.real);
}

CUresult MapUnmanaged(Va at, const Mapping& mapping) SLUICE_REQUIRES(g_mutex) {
  Physical* const physical = mapping.physical;
  const CUresult result = g_real.cuMemMap(at, mapping.bytes, 0, physical->real, 0);
  if (result != CUDA_SUCCESS) return result;
  TheState().unmanaged_mappings[at] = physical;
  std::vector<CUmemAccessDesc> access;
  access.reserve(mapping.access.size());
  for (const auto& [device, flags] : mapping.access) access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, {device}}, flags});
  CountReferences(*physical, at);
  return access.empty() ? CUDA_SUCCESS : g_real.cuMemSetAccess(at, mapping.bytes, access.data(), access.size());
}

}  // namespace

bool IsQuiet(bool beside_threads) {
  const MutexUnlock waiting(g_mutex);
  constexpr int kMaxAttempts = 2000;
  constexpr timespec kPause{0, 1'000'000};
  if (g_captures.load() > 0 || (!beside_threads && OtherThreadsQueue())) return false;
  const std::optional<Queued> work = QueuedWork();
  for (int attempt = 0; work && attempt < kMaxAttempts; ++attempt) {
    if (IsDone(*work)) return true;
    nanosleep(&kPause, nullptr);
  }
  return false;
}

uint64_t MoveToHint(CUdeviceptr* pointer, uint64_t bytes, CUdeviceptr hint) {
  const uint64_t size = AddressBytes(bytes);
  if (!hint || *pointer == hint || size == bytes) return bytes;
  CUdeviceptr there = 0;
  g_real.cuMemAddressFree(*pointer, bytes);  // it may be in the way
  if (g_real.cuMemAddressReserve(&there, size, 0, hint, 0) != CUDA_SUCCESS) there = 0;
  if (there == hint) return *pointer = hint, size;
  if (there) g_real.cuMemAddressFree(there, size);
  return g_real.cuMemAddressReserve(pointer, bytes, 0, 0, 0) == CUDA_SUCCESS ? bytes : 0;
}

void FreeIdleIn(Extent range) {
  State& state = TheState();
  for (auto it = state.idle.begin(); it != state.idle.end();) {
    const Reserved& reserved = state.reservations.at(*it);
    const bool overlaps = reserved.range.base < range.end() && range.base < reserved.range.end();
    if (!overlaps || !IsQuiet() || !reserved.device->Unreserve(*it, true)) {
      ++it;
      continue;
    }
    state.idle_bytes -= AddressBytes(reserved.range.bytes);
    state.reservations.erase(*it);
    it = state.idle.erase(it);
  }
}

CUresult ConvertToUnmanaged(Reserved* reserved, const char* reason, Settlement* settlement, bool beside_threads) {
  if (reserved->is_gone || reserved->is_free) return CUDA_ERROR_INVALID_VALUE;
  if (!reserved->mappings.empty() || !reserved->kept.empty()) {
    if (!IsQuiet(beside_threads)) return Refuse(reason);
  }
  const ContextScope scope(reserved->context);
  while (!reserved->kept.empty()) {
    const CUresult result = MoveToHost(reserved, reserved->kept.begin()->second);
    if (result != CUDA_SUCCESS) return result;
  }
  std::vector<Physical*> converted;
  for (const auto& [va, mapping] : reserved->mappings) {
    const CUresult result = Convert(mapping.physical, reason);
    if (result != CUDA_SUCCESS) {
      for (Physical* const physical : converted) TakeBack(physical);
      return result;
    }
    converted.push_back(mapping.physical);
  }
  // From here on the contents are the driver's, and the managed memory is dead.
  eviction_threads::CancelIn({reserved->range});
  for (const auto& [va, mapping] : reserved->mappings) {
    reserved->device->Unmap({va, mapping.bytes}, false);
    mapping.physical->at = 0;
    mapping.physical->contents_bytes = 0;
  }
  const auto mappings = std::exchange(reserved->mappings, {});
  CUresult result = TurnUnmanaged(reserved, reason, settlement) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  for (auto it = mappings.begin(); it != mappings.end() && result == CUDA_SUCCESS; ++it)
    result = MapUnmanaged(it->first, it->second);
  if (result != CUDA_SUCCESS)
    SLUICE_LOG(kError, "VMM memory could not be given back to the driver at its address: error %d", result);
  return result;
}

bool HasReservations(const Device* device) {
  const auto& all = TheState().reservations;
  return std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    const Reserved& reserved = entry.second;
    const bool is_idle = reserved.is_free && reserved.kept.empty();
    return reserved.device == device && !is_idle && !reserved.is_gone;
  });
}

bool HoldsPrimary(const Device* device) {
  if (g_highest.load(std::memory_order_relaxed) == 0) return false;
  MutexLock lock(g_mutex);
  return HasReservations(device);
}

// Other threads' work ends with the context, so none of it can meet the moment in which nothing is mapped.
void OutliveReset(const Device* device) {
  constexpr const char* kReset = "the primary context is reset";
  if (g_highest.load(std::memory_order_relaxed) == 0) return;
  Settlement settlement;
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  std::vector<Va> all;
  for (const auto& [base, reserved] : TheState().reservations) {
    if (reserved.device == device && !reserved.is_gone) all.push_back(base);
  }
  for (const Va base : all) {
    Reserved& reserved = TheState().reservations.at(base);
    CUresult result = CUDA_SUCCESS;
    if (!reserved.is_free) {
      result = ConvertToUnmanaged(&reserved, kReset, &settlement, true);
    } else if (!reserved.kept.empty() && IsQuiet(true)) {
      const ContextScope scope(reserved.context);
      while (result == CUDA_SUCCESS && !reserved.kept.empty())
        result = MoveToHost(&reserved, reserved.kept.begin()->second);
    }
    if (result != CUDA_SUCCESS)
      SLUICE_LOG(kWarn, "contents of VMM memory end with the primary context: error %d", result);
  }
}

CUresult ConvertToUnmanaged(Physical* physical, const char* reason, Settlement* settlement) {
  if (physical->form != Form::kManaged) return MakeUnmanaged(physical, reason);
  if (physical->mappings > 0) {
    Reserved* const reserved = ReservedAt(physical->at);
    return reserved ? ConvertToUnmanaged(reserved, reason, settlement) : CUDA_ERROR_INVALID_VALUE;
  }
  if (!physical->at && !physical->copy) return MakeUnmanaged(physical, reason);
  if (!IsQuiet()) return Refuse(reason);
  CUcontext context = nullptr;
  if (const Reserved* const reserved = physical->at ? ReservedAt(physical->at) : nullptr) context = reserved->context;
  if (!context) g_real.cuCtxGetCurrent(&context);
  const ContextScope scope(context);
  const CUresult result = Convert(physical, reason);
  if (result == CUDA_SUCCESS) DropContents(physical, settlement);
  return result;
}

CUresult MakeDriversOwn(CUdeviceptr pointer, const char* use) {
  if (!Find(pointer)) return CUDA_SUCCESS;
  Settlement settlement;
  MutexLock changes(g_changes);
  MutexLock lock(g_mutex);
  Reserved* const reserved = ReservedAt(pointer);
  return reserved ? ConvertToUnmanaged(reserved, use, &settlement) : CUDA_SUCCESS;
}

}  // namespace sluice::virtual_memory
