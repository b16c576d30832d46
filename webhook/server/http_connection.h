// One client of the HTTP server, with TLS or without: its bytes and its deadlines. It belongs to the moving thread.
#ifndef SLUICE_WEBHOOK_SERVER_HTTP_CONNECTION_H_
#define SLUICE_WEBHOOK_SERVER_HTTP_CONNECTION_H_

#include <openssl/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::webhook {

// Bytes moved in one step: something, nothing yet, or the end.
enum class Step { kProgress, kWait, kEnd };

struct Connection {
  enum class State { kHandshake, kReading, kWorking, kWriting };

  Connection() = default;
  ~Connection();  // closes
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // An accepted socket, not blocking. `tls` null: plain, and no handshake.
  void Take(int socket, SSL_CTX* tls);
  // `interest`: what epoll is to wait for before the next step.
  Step Handshake(uint32_t& interest) const;
  Step Receive(char* to, size_t size, size_t& got) const;
  Step Send(std::string_view bytes, size_t& sent) const;
  // The client sees the reply before the end: what it still sends would otherwise turn the end into a reset.
  void SayEnd() const;

  State state = State::kHandshake;
  uint64_t id = 0;
  int fd = -1;
  std::string in, out;
  size_t written = 0;  // of `out`
  bool close = false;
  bool continued = false;
  std::chrono::steady_clock::time_point deadline, since;
  uint32_t events = 0;  // as told to epoll

 private:
  SSL* ssl_ = nullptr;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_HTTP_CONNECTION_H_
