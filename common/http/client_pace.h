// How many requests a second each client's address may make. For the loop's thread alone.
#ifndef SLUICE_COMMON_HTTP_CLIENT_PACE_H_
#define SLUICE_COMMON_HTTP_CLIENT_PACE_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <map>

namespace sluice::http {

using ClientAddress = std::array<unsigned char, 16>;  // IPv4 in its IPv6 form

// The address at the other end of a TCP socket; all zeros: not known.
ClientAddress ClientOf(int fd);

class ClientPace {
 public:
  using Clock = std::chrono::steady_clock;

  // `per_s` 0: any number.
  explicit ClientPace(double per_s) : per_s_(per_s), burst_(per_s < 0.5 ? 1 : 2 * per_s) {}
  // False: not now.
  bool Take(const ClientAddress& client, Clock::time_point now);

 private:
  struct Bucket {
    double left = 0;
    Clock::time_point filled;
  };
  // Addresses beyond so many share one bucket, until others are full again.
  static constexpr size_t kMaxClients = 4096;

  const double per_s_, burst_;
  std::map<ClientAddress, Bucket> clients_;
};

}  // namespace sluice::http

#endif  // SLUICE_COMMON_HTTP_CLIENT_PACE_H_
