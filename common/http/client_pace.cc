#include "common/http/client_pace.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace sluice::http {

ClientAddress ClientOf(int fd) {
  ClientAddress out{};
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return out;
  if (peer.ss_family == AF_INET6) {
    std::memcpy(out.data(), &reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_addr, out.size());
  } else if (peer.ss_family == AF_INET) {
    out[10] = out[11] = 0xff;
    std::memcpy(&out[12], &reinterpret_cast<const sockaddr_in*>(&peer)->sin_addr, 4);
  }
  return out;
}

bool ClientPace::Take(const ClientAddress& client, Clock::time_point now) {
  if (per_s_ <= 0) return true;
  const auto left = [&](const Bucket& b) {
    return std::min(burst_, b.left + std::chrono::duration<double>(now - b.filled).count() * per_s_);
  };
  if (clients_.size() >= kMaxClients && !clients_.contains(client)) {
    std::erase_if(clients_, [&](const auto& c) { return left(c.second) >= burst_; });
  }
  const ClientAddress key = clients_.size() >= kMaxClients && !clients_.contains(client) ? ClientAddress{} : client;
  Bucket& bucket = clients_.try_emplace(key, Bucket{burst_, now}).first->second;
  bucket = {left(bucket), now};
  if (bucket.left < 1) return false;
  bucket.left -= 1;
  return true;
}

}  // namespace sluice::http
