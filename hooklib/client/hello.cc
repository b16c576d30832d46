#include "client/hello.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace sluice::client {
namespace {

// Reads the start of a file of /proc. stdio would allocate from the application's heap.
size_t ReadFile(const char* path, char* to, size_t size) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = read(fd, to, size - 1);
  close(fd);
  to[n < 0 ? 0 : n] = '\0';
  return n < 0 ? 0 : static_cast<size_t>(n);
}

}  // namespace

void FillHello(sluice_hello& hello) {
  hello.pid = getpid();
  char text[512];
  if (ReadFile("/proc/self/stat", text, sizeof(text)) > 0) {
    // The second field is the name in brackets, which may contain blanks and brackets: fields are counted from the last
    // one.
    const char* p = strrchr(text, ')');
    for (int field = 2; p != nullptr && field < 22; ++field) {
      p = strchr(p + 1, ' ');
    }
    if (p != nullptr) hello.start_ticks = strtoull(p + 1, nullptr, 10);
  }
  size_t n = ReadFile("/proc/self/cmdline", text, sizeof(text));
  while (n > 0 && text[n - 1] == '\0') --n;
  for (size_t i = 0; i < n; ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    text[i] = c < ' ' || c == 127 ? ' ' : static_cast<char>(c);
  }
  if (n >= sizeof(hello.command)) n = sizeof(hello.command) - 1;
  memcpy(hello.command, text, n);
}

}  // namespace sluice::client
