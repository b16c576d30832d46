#include "webhook/log.h"

#include <cstdio>
#include <mutex>

namespace sluice::webhook {

void Log(std::string line) {
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::fprintf(stderr, "sluice-webhook: %s\n", line.c_str());
}

}  // namespace sluice::webhook
