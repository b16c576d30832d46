#include "misuse.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace simgpu {
namespace {

uint64_t g_count = 0;
std::string g_last;
void (*g_flush)() = nullptr;

bool Aborts() {
  static const bool aborts = [] {
    const char* mode = std::getenv("SIMGPU_MISUSE");
    if (mode == nullptr || *mode == '\0' || std::strcmp(mode, "abort") == 0) return true;
    if (std::strcmp(mode, "report") == 0) return false;
    std::fprintf(stderr, "simgpu: SIMGPU_MISUSE='%s': abort and report are accepted\n", mode);
    std::_Exit(2);
  }();
  return aborts;
}

}  // namespace

void Misuse(const std::string& message) {
  ++g_count;
  if (message == g_last) return;
  g_last = message;
  std::fprintf(stderr, "simgpu: misuse: %s\n", message.c_str());
  std::fflush(stderr);
  if (!Aborts()) return;
  if (g_flush != nullptr) g_flush();
  const char* code = std::getenv("SIMGPU_MISUSE_EXIT");
  std::_Exit(code != nullptr && *code != '\0' ? std::atoi(code) : 86);
}

void CheckMisuseSettings() { Aborts(); }
uint64_t MisuseCount() { return g_count; }
const char* LastMisuse() { return g_last.c_str(); }
void SetMisuseFlush(void (*flush)()) { g_flush = flush; }

}  // namespace simgpu
