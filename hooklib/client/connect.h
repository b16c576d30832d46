// A connection to the agent's socket, before the first frame.
#ifndef SLUICE_HOOKLIB_CLIENT_CONNECT_H_
#define SLUICE_HOOKLIB_CLIENT_CONNECT_H_

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "client/descriptor.h"

namespace sluice::client {

// The address of a Unix socket. A path longer than sockaddr_un holds is reached through a descriptor of its folder,
// which lives as long as this object.
class SocketAddress {
 public:
  explicit SocketAddress(const char* path);
  ~SocketAddress() {
    if (folder_ >= 0) close(folder_);
  }
  SocketAddress(const SocketAddress&) = delete;
  SocketAddress& operator=(const SocketAddress&) = delete;
  // Waits at most `wait_ms` for an agent that does not accept.
  bool Connect(int fd, int wait_ms) const;

 private:
  sockaddr_un address_{};
  int folder_ = -1;
  bool valid_ = false;
};

// A SOCK_SEQPACKET socket with a high number; -1: none could be made.
int MakeSocket();
// A connected one; -1: no agent.
int ConnectTo(const char* path, int wait_ms);

}  // namespace sluice::client

#endif  // SLUICE_HOOKLIB_CLIENT_CONNECT_H_
