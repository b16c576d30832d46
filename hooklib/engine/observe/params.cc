#include "hooklib/engine/observe/params.h"

#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/observe/tensor_maps.h"

namespace sluice {

namespace {

Mutex g_mutex;  // guards the four below; no other lock is taken inside
std::unordered_map<CUfunction, std::unique_ptr<FunctionInfo>>& Functions() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::unordered_map<CUfunction, std::unique_ptr<FunctionInfo>>();
  return map;
}
// Of unloaded modules; and of functions without a known owner, which another thread may still be launching.
std::deque<std::unique_ptr<FunctionInfo>>& Retired() SLUICE_REQUIRES(g_mutex) {
  static auto& retired = *new std::deque<std::unique_ptr<FunctionInfo>>();
  return retired;
}
std::vector<std::unique_ptr<FunctionInfo>>& Ownerless() SLUICE_REQUIRES(g_mutex) {
  static auto& ownerless = *new std::vector<std::unique_ptr<FunctionInfo>>();
  return ownerless;
}
// Libraries' modules, with their contexts. Others' handles may be among them that were given again.
struct LibraryModule {
  CUlibrary library = nullptr;
  CUcontext context = nullptr;
};
std::unordered_map<const void*, LibraryModule>& LibraryModules() SLUICE_REQUIRES(g_mutex) {
  static auto& modules = *new std::unordered_map<const void*, LibraryModule>();
  return modules;
}
// No launch reads the description of a module that is long unloaded.
constexpr size_t kMaxRetired = 1024;

// The functions launched last, by handle: programs launch few.
std::atomic<const FunctionInfo*> g_recent[256];
size_t RecentPlace(CUfunction function) { return (reinterpret_cast<uintptr_t>(function) >> 5) & 255; }

// The context that owns the modules loaded in `context`; null: in the current one.
CUcontext OwnerOf(CUcontext context) {
  if (!context && g_real.cuCtxGetCurrent(&context) != CUDA_SUCCESS) return nullptr;
  const ContextScope scope(context);
  Device* const device = scope.is_current() ? CurrentDevice() : nullptr;
  return device ? device->MemoryContext(context) : context;
}

std::unique_ptr<FunctionInfo> AskDriver(CUfunction function, CUcontext context) {
  auto info = std::make_unique<FunctionInfo>();
  RelaxedCapture relaxed;
  auto ask = [&](size_t index, size_t* offset, size_t* bytes) {
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (g_real.cuFuncGetParamInfo) result = g_real.cuFuncGetParamInfo(function, index, offset, bytes);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE && g_real.cuKernelGetParamInfo) {
      result = g_real.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), index, offset, bytes);
    }
    return result;
  };
  for (size_t index = 0; index < 4096; ++index) {
    size_t offset = 0, bytes = 0;
    const CUresult result = ask(index, &offset, &bytes);
    if (result == CUDA_ERROR_INVALID_VALUE) {  // past the last one
      info->known = true;
      break;
    }
    if (result != CUDA_SUCCESS) break;
    info->parameters.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
  }
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  if (g_real.cuFuncGetModule && g_real.cuFuncGetModule(&module, function) == CUDA_SUCCESS) {
    info->owner = module;
  } else if (g_real.cuKernelGetLibrary &&
             g_real.cuKernelGetLibrary(&library, reinterpret_cast<CUkernel>(function)) == CUDA_SUCCESS) {
    info->owner = library;
  }
  if (!library) info->context = OwnerOf(context);
  const char* name = nullptr;
  const bool of_function = g_real.cuFuncGetName && g_real.cuFuncGetName(&name, function) == CUDA_SUCCESS && name;
  const bool of_kernel = !of_function && g_real.cuKernelGetName &&
                         g_real.cuKernelGetName(&name, reinterpret_cast<CUkernel>(function)) == CUDA_SUCCESS && name;
  if (of_function || of_kernel) info->name = name;
  std::vector<uint32_t> bytes;
  for (const FunctionInfo::Parameter& parameter : info->parameters) bytes.push_back(parameter.bytes);
  if (info->known) info->torch = libraries::RecogniseTorchKernel(info->name, bytes);
  constexpr uint32_t kMaxSimpleBytes = 256;
  uint32_t address_bytes = 0;
  for (uint32_t i = 0; info->known && i < bytes.size(); ++i) {
    if (bytes[i] < 8) continue;
    info->may_hold_addresses.push_back(i);
    address_bytes += bytes[i];
  }
  info->is_simple =
      info->known && info->torch.family == libraries::TorchKernel::Family::kNone && address_bytes <= kMaxSimpleBytes;
  return info;
}

// Appends the tracked words of the bytes. A TMA descriptor among them becomes a reach, or where `reaches` is null its
// pointer.
void Scan(const char* at, size_t bytes, std::vector<uint64_t>* words, std::vector<libraries::Reach>* reaches) {
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, at + i, 8);
    if (i + kTensorMapBytes <= bytes && MayBeTensorMap(word)) {
      if (const std::optional<libraries::Reach> tensor = TensorMapAt(at + i)) {
        if (MayBeTracked(tensor->pointer)) {
          if (reaches) {
            reaches->push_back(*tensor);
          } else {
            words->push_back(tensor->pointer);  // NOLINT(clang-analyzer-core.CallAndMessage): `named` is never null
          }
        }
        i += kTensorMapBytes - 8;
        continue;
      }
    }
    if (MayBeTracked(word)) words->push_back(word);
  }
}

}  // namespace

const FunctionInfo* InfoOf(CUfunction function, CUcontext context) {
  std::atomic<const FunctionInfo*>& recent = g_recent[RecentPlace(function)];
  const FunctionInfo* info = recent.load(std::memory_order_acquire);
  if (info && info->function == function) return info;
  if (const FunctionInfo* known = KnownInfoOf(function)) {
    info = known;
  } else {
    auto made = AskDriver(function, context);
    MutexLock lock(g_mutex);
    made->function = function;
    auto& entry = Functions()[function];
    if (!entry) entry = std::move(made);
    info = entry.get();
  }
  recent.store(info, std::memory_order_release);
  return info;
}

const FunctionInfo* KnownInfoOf(CUfunction function) {
  MutexLock lock(g_mutex);
  const auto it = Functions().find(function);
  return it == Functions().end() ? nullptr : it->second.get();
}

namespace {

template <typename Is>
void ForgetIf(Is is) SLUICE_REQUIRES(g_mutex) {
  for (auto it = Functions().begin(); it != Functions().end();) {
    const FunctionInfo* const info = it->second.get();
    if (!is(*info)) {
      ++it;
      continue;
    }
    const FunctionInfo* expected = info;
    g_recent[RecentPlace(info->function)].compare_exchange_strong(expected, nullptr);
    if (info->owner) {
      Retired().push_back(std::move(it->second));
    } else {
      Ownerless().push_back(std::move(it->second));
    }
    it = Functions().erase(it);
  }
  while (Retired().size() > kMaxRetired) Retired().pop_front();
}

}  // namespace

void NoteModuleOf(CUlibrary library, CUmodule module) {
  {
    MutexLock lock(g_mutex);
    const auto it = LibraryModules().find(module);
    if (it != LibraryModules().end() && it->second.library == library) return;
  }
  RelaxedCapture relaxed;
  CUcontext const context = OwnerOf(nullptr);
  MutexLock lock(g_mutex);
  LibraryModules()[module] = {library, context};
}

void NoteFunctionOf(CUkernel kernel, CUfunction function) {
  CUlibrary library = nullptr;
  CUmodule module = nullptr;
  RelaxedCapture relaxed;
  if (g_real.cuKernelGetLibrary && g_real.cuFuncGetModule &&
      g_real.cuKernelGetLibrary(&library, kernel) == CUDA_SUCCESS &&
      g_real.cuFuncGetModule(&module, function) == CUDA_SUCCESS)
    NoteModuleOf(library, module);
}

void ForgetFunctions(const void* owner) {
  MutexLock lock(g_mutex);
  ForgetIf([owner](const FunctionInfo& info) SLUICE_REQUIRES(g_mutex) {
    if (info.owner == owner || info.owner == nullptr) return true;
    const auto it = LibraryModules().find(info.owner);
    return it != LibraryModules().end() && it->second.library == owner;
  });
  std::erase_if(LibraryModules(),
                [owner](const auto& entry) { return entry.first == owner || entry.second.library == owner; });
}

void ForgetFunctionsOf(CUcontext context) {
  MutexLock lock(g_mutex);
  ForgetIf([context](const FunctionInfo& info) { return info.context == context; });
  std::erase_if(LibraryModules(), [context](const auto& entry) { return entry.second.context == context; });
}

namespace {

// `understood`: bit i is set where parameter i's words are no addresses, or have been collected already.
bool CollectRest(const FunctionInfo& info, uint32_t understood, void* const* parameters, void* const* extra,
                 std::vector<uint64_t>* words, std::vector<libraries::Reach>* reaches, std::vector<uint64_t>* all) {
  if (extra && !parameters) {
    const char* buffer = nullptr;
    size_t bytes = 0;
    for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(extra[i + 1]);
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(extra[i + 1]);
    }
    if (!buffer) return false;
    Scan(buffer, bytes, words, reaches);
    if (all) {
      all->assign((bytes + 7) / 8, 0);
      std::memcpy(all->data(), buffer, bytes);
    }
    return true;
  }
  if (!info.known) return false;
  if (!parameters) return info.parameters.empty();
  for (size_t i = 0; i < info.parameters.size(); ++i) {
    const auto [offset, bytes] = info.parameters[i];
    if (!parameters[i]) continue;
    const bool is_understood = i < 32 && (understood >> i & 1);
    if (bytes >= 8 && !is_understood) Scan(static_cast<const char*>(parameters[i]), bytes, words, reaches);
    if (all) {
      if (all->size() * 8 < offset + bytes) all->resize((offset + bytes + 7) / 8);
      std::memcpy(reinterpret_cast<char*>(all->data()) + offset, parameters[i], bytes);
    }
  }
  return true;
}

}  // namespace

bool CollectWords(const FunctionInfo& info, void* const* parameters, void* const* extra, std::vector<uint64_t>* words,
                  std::vector<uint64_t>* all) {
  return CollectRest(info, 0, parameters, extra, words, nullptr, all);
}

bool CollectNames(const FunctionInfo& info, const libraries::LaunchShape& shape, void* const* parameters,
                  void* const* extra, NamedMemory* named, std::vector<uint64_t>* all) {
  if (parameters && info.known && info.torch.family == libraries::TorchKernel::Family::kNone && !all) [[likely]] {
    for (const uint32_t i : info.may_hold_addresses) {
      const void* const at = parameters[i];
      const uint32_t bytes = info.parameters[i].bytes;
      if (!at) continue;
      if (bytes >= 16) {
        Scan(static_cast<const char*>(at), bytes, &named->words, &named->reaches);
        continue;
      }
      uint64_t word;
      std::memcpy(&word, at, 8);
      if (MayBeTracked(word)) named->words.push_back(word);
    }
    return true;
  }
  uint32_t understood = 0;
  if (parameters && info.torch.family != libraries::TorchKernel::Family::kNone) {
    understood = libraries::ReadTorchKernel(info.torch, shape, parameters, &named->reaches);
    std::erase_if(named->reaches, [](const libraries::Reach& reach) { return !MayBeTracked(reach.pointer); });
  }
  return CollectRest(info, understood, parameters, extra, &named->words, &named->reaches, all);
}

}  // namespace sluice
