#include "client/connect.h"

#include <sys/time.h>

namespace sluice::client {

SocketAddress::SocketAddress(const char* path) {
  address_.sun_family = AF_UNIX;
  const size_t length = strlen(path);
  if (length < sizeof(address_.sun_path)) {
    memcpy(address_.sun_path, path, length + 1);
    valid_ = true;
    return;
  }
  char folder[256];
  if (length >= sizeof(folder)) return;
  memcpy(folder, path, length + 1);
  char* slash = strrchr(folder, '/');
  if (slash == nullptr) return;
  *slash = '\0';
  folder_ = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  snprintf(address_.sun_path, sizeof(address_.sun_path), "/proc/self/fd/%d/%.60s", folder_, slash + 1);
  valid_ = folder_ >= 0;
}

bool SocketAddress::Connect(int fd, int wait_ms) const {
  const timeval patience{wait_ms / 1000, wait_ms % 1000 * 1000L};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  return valid_ && connect(fd, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) == 0;
}

int MakeSocket() { return MoveToHighNumber(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

int ConnectTo(const char* path, int wait_ms) {
  const int fd = MakeSocket();
  if (fd < 0 || SocketAddress(path).Connect(fd, wait_ms)) return fd;
  close(fd);
  return -1;
}

}  // namespace sluice::client
