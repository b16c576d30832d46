// Addresses in a kernel's parameters: every aligned word that could be one.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_PARAMS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_PARAMS_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/libraries/extents/torch_kernels.h"

namespace sluice {

struct FunctionInfo {
  struct Parameter {
    uint32_t offset, bytes;
  };
  std::vector<Parameter> parameters;
  CUfunction function = nullptr;
  const void* owner = nullptr;  // its module or library; null: the driver does not say
  CUcontext context = nullptr;  // with which it ends; null: with none, since it is a library's kernel
  bool known = false;           // the driver described the layout (cuFuncGetParamInfo, 12.4 and later)
  // Places of its parameters that may hold addresses, where nothing more is known of their meaning.
  std::vector<uint32_t> may_hold_addresses;
  bool is_simple = false;  // nothing more is known, and the parameters are small: KeyOfWords may be called
  std::string name;
  libraries::TorchKernel torch;  // known meanings of the parameters
};

// Memory that the parameters of one launch name.
struct NamedMemory {
  std::vector<uint64_t> words;            // may be tracked addresses, each standing for its whole block
  std::vector<libraries::Reach> reaches;  // parts of the block around an address
  void clear() {
    words.clear();
    reaches.clear();
  }
};

// The layout of a function (or of a CUkernel passed as one) that is launched in `context`, null: the current one. The
// driver is asked once. Never null; valid until the function's module is unloaded, or its context ends. Thread-safe.
const FunctionInfo* InfoOf(CUfunction function, CUcontext context);
// The same without asking the driver: null if this function was not seen yet. For launches that are being captured,
// where a question about a kernel that is not loaded yet can invalidate the capture.
const FunctionInfo* KnownInfoOf(CUfunction function);
// The module belongs to the library: in each context it has another one. The driver does not tell that later.
void NoteModuleOf(CUlibrary library, CUmodule module);
void NoteFunctionOf(CUkernel kernel, CUfunction function);  // the same for the function's module
// The module or library is unloaded, a library with its modules: handles of functions may be given again.
void ForgetFunctions(const void* owner);
void ForgetFunctionsOf(CUcontext context);  // it ends, and its modules with it

// Appends all words of the parameters (or of the `extra` buffer) that may be tracked addresses. False: the layout is
// not known. `all`, if given, gets every parameter byte, packed by the layout's offsets, for a trace.
bool CollectWords(const FunctionInfo& info, void* const* parameters, void* const* extra, std::vector<uint64_t>* words,
                  std::vector<uint64_t>* all = nullptr);
// The same for one launch, with reaches instead of words where the parameters' meaning is known.
bool CollectNames(const FunctionInfo& info, const libraries::LaunchShape& shape, void* const* parameters,
                  void* const* extra, NamedMemory* named, std::vector<uint64_t>* all = nullptr);

// A hash of `key` and these parameters' words: two launches of a kernel that name different memory have different
// hashes. Only for a simple function.
inline uint64_t KeyOfWords(const FunctionInfo& info, void* const* parameters, uint64_t key) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  for (const uint32_t i : info.may_hold_addresses) {
    const char* const at = static_cast<const char*>(parameters[i]);
    for (uint32_t offset = 0; at && offset + 8 <= info.parameters[i].bytes; offset += 8) {
      uint64_t word;
      std::memcpy(&word, at + offset, 8);
      key = (key ^ word) * kOdd;
      key ^= key >> 32;
    }
  }
  return key;
}

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_PARAMS_H_
