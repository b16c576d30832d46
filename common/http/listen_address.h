// The addresses at which daemons listen: "0.0.0.0:9401", "[fd00::1]:9401", ":9401". Any thread.
#ifndef SLUICE_COMMON_HTTP_LISTEN_ADDRESS_H_
#define SLUICE_COMMON_HTTP_LISTEN_ADDRESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct ListenAddress {
  // Numeric and without brackets. "::" stands for every address of both families.
  std::string host;
  uint16_t port = 0;  // 0: any free port
};

// For messages: what ParseListenAddress accepts.
inline constexpr const char* kListenAddressForms = "ADDRESS:PORT, [IPV6]:PORT, or :PORT for every address of the host";

// nullopt: neither form. A name is refused, since it may stand for several addresses, and IPv6 needs its brackets.
std::optional<ListenAddress> ParseListenAddress(std::string_view text);

// "10.0.0.1:80", "[::1]:80".
std::string FormatHostPort(std::string_view host, unsigned port);

// A socket that listens, non-blocking and closed on exec. "::" serves both families; on a kernel without IPv6, IPv4.
// -1: `error` says why ("[::]:8443: Address already in use").
int OpenListener(const ListenAddress& address, int backlog, std::string* error);

// The port of a socket that listens.
uint16_t PortOf(int fd);

}  // namespace sluice

#endif  // SLUICE_COMMON_HTTP_LISTEN_ADDRESS_H_
