// What a kernel's parameters say about memory: every aligned word that could be an address.
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
  uint64_t generation = 0;  // times that handles had changed their meaning when it was asked
  bool known = false;       // the driver told the layout (cuFuncGetParamInfo, 12.4 and later)
  // Its parameters that may hold addresses, by place, where that is all that is known of their meaning.
  std::vector<uint32_t> wide;
  bool plain = false;  // that is all that is known, and they are few: KeyOfWords may be asked
  std::string name;
  libraries::TorchKernel torch;  // whether the parameters' meaning is known
};

// What the parameters of one launch name.
struct Named {
  std::vector<uint64_t> words;            // may be tracked addresses: all that lives around them may be meant
  std::vector<libraries::Reach> reaches;  // parts of what lives around an address
  void clear() {
    words.clear();
    reaches.clear();
  }
};

// The layout of a function (or of a CUkernel passed as one), asked of the driver once. Never null; lives until its
// module is unloaded.
const FunctionInfo* InfoOf(CUfunction function);
// The same without asking the driver: null if this function was not seen yet. For launches that are being captured,
// where a question about a kernel that is not loaded yet can spoil the capture.
const FunctionInfo* KnownInfoOf(CUfunction function);
// Function handles may mean something else now.
void ForgetFunctions();

// Appends all words of the parameters (or of the `extra` buffer) that may be tracked addresses. False where the layout
// is not known. `all`, if given, gets every parameter byte, packed by the layout's offsets, for a trace.
bool CollectWords(const FunctionInfo& info, void* const* parameters, void* const* extra, std::vector<uint64_t>* words,
                  std::vector<uint64_t>* all = nullptr);
// The same for one launch: where its parameters' meaning is known, reaches instead of words.
bool Collect(const FunctionInfo& info, const libraries::LaunchShape& shape, void* const* parameters, void* const* extra,
             Named* named, std::vector<uint64_t>* all = nullptr);

// A hash of what these parameters hold, that of `key` first: two launches of a kernel that differ in what they name
// differ in it. Only of a plain one.
inline uint64_t KeyOfWords(const FunctionInfo& info, void* const* parameters, uint64_t key) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  for (const uint32_t i : info.wide) {
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
