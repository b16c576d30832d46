#include "common/http/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace sluice {
namespace {

constexpr std::string_view kAny = "::";

bool IsV4(const std::string& host) {
  in_addr unused{};
  return inet_pton(AF_INET, host.c_str(), &unused) == 1;
}

bool IsV6(const std::string& host) {
  in6_addr unused{};
  return inet_pton(AF_INET6, host.c_str(), &unused) == 1;
}

// Errors of a kernel that was started with ipv6.disable=1, or that has the family and no address of it.
bool LacksV6(int error) { return error == EAFNOSUPPORT || error == EADDRNOTAVAIL; }

int Open(const sockaddr* address, socklen_t size, int backlog) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // Its default is a setting of the machine (net.ipv6.bindv6only).
  if (address->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(fd, address, size) == 0 && listen(fd, backlog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

std::optional<ListenAddress> ParseListenAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  ListenAddress out;
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (port.empty() || error != std::errc() || end != port.data() + port.size()) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  out.host = host.empty() ? kAny : host;
  if (!host.empty() && !(brackets ? IsV6(out.host) : IsV4(out.host))) return std::nullopt;
  return out;
}

std::string FormatHostPort(std::string_view host, unsigned port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return (v6 ? "[" : "") + std::string(host) + (v6 ? "]:" : ":") + std::to_string(port);
}

int OpenListener(const ListenAddress& address, int backlog, std::string* error) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(address.port);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(address.port);
  int fd = -1;
  errno = EINVAL;
  if (inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr) == 1) {
    fd = Open(reinterpret_cast<const sockaddr*>(&v6), sizeof v6, backlog);
    // v4 holds INADDR_ANY here.
    if (fd < 0 && address.host == kAny && LacksV6(errno))
      fd = Open(reinterpret_cast<const sockaddr*>(&v4), sizeof v4, backlog);
  } else if (inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr) == 1) {
    fd = Open(reinterpret_cast<const sockaddr*>(&v4), sizeof v4, backlog);
  }
  if (fd < 0) *error = FormatHostPort(address.host, address.port) + ": " + std::strerror(errno);
  return fd;
}

uint16_t PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace sluice
