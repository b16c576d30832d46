#include "webhook/server/listener.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include "common/http/listen_address.h"

namespace sluice::webhook {
namespace {

constexpr int kListenBacklog = 1024;

}  // namespace

std::string Listen(const std::string& address, uint16_t& port, int& fd) {
  std::string error;
  fd = OpenListener({address, port}, kListenBacklog, &error);
  if (fd < 0) return "the server cannot listen at " + error;
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return {};
}

}  // namespace sluice::webhook
