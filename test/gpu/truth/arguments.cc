#include "arguments.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace sluice::truth {

using trace::Parameter;

namespace {

std::mutex g_mutex;
std::unordered_map<uint64_t, std::vector<Parameter>> g_layouts;
uint64_t g_without_layout = 0;

std::vector<Parameter> Layout(CUfunction function) {
  std::vector<Parameter> layout;
  size_t offset = 0, bytes = 0;
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; (result = cuFuncGetParamInfo(function, i, &offset, &bytes)) == CUDA_SUCCESS; ++i) {
    layout.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
  }
  // Runtimes of CUDA 12 and later launch kernels of libraries as if they were functions. The driver crashes when it is
  // asked about a function as a kernel, so this is tried only after that error.
  if (layout.empty() && result == CUDA_ERROR_INVALID_HANDLE) {
    const auto kernel = reinterpret_cast<CUkernel>(function);
    for (size_t i = 0; cuKernelGetParamInfo(kernel, i, &offset, &bytes) == CUDA_SUCCESS; ++i) {
      layout.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
    }
  }
  return layout;
}

}  // namespace

Arguments ReadArguments(CUfunction function, void** parameters, void** extra) {
  Arguments out;
  {
    std::lock_guard lock(g_mutex);
    const auto it = g_layouts.find(reinterpret_cast<uint64_t>(function));
    if (it != g_layouts.end()) out.layout = it->second;
  }
  if (out.layout.empty()) {
    out.layout = Layout(function);
    std::lock_guard lock(g_mutex);
    if (g_layouts.emplace(reinterpret_cast<uint64_t>(function), out.layout).second && out.layout.empty())
      ++g_without_layout;
  }
  uint32_t end = 0;
  for (const Parameter& p : out.layout) end = std::max(end, p.offset + p.bytes);
  out.words.resize((end + 7) / 8);
  char* image = reinterpret_cast<char*>(out.words.data());
  if (parameters != nullptr) {
    for (size_t i = 0; i < out.layout.size(); ++i) {
      if (parameters[i] != nullptr) std::memcpy(image + out.layout[i].offset, parameters[i], out.layout[i].bytes);
    }
  } else if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t size = 0;
    for (void** e = extra; *e != CU_LAUNCH_PARAM_END; e += 2) {
      if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = e[1];
      if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(e[1]);
    }
    if (buffer != nullptr) std::memcpy(image, buffer, std::min<size_t>(size, out.words.size() * 8));
  }
  return out;
}

uint64_t FunctionsWithoutLayout() {
  std::lock_guard lock(g_mutex);
  return g_without_layout;
}

}  // namespace sluice::truth
