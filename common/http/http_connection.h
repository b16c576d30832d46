// One client of the HTTP server, with TLS or without: its bytes and its deadlines. For the loop's thread alone.
#ifndef SLUICE_COMMON_HTTP_HTTP_CONNECTION_H_
#define SLUICE_COMMON_HTTP_HTTP_CONNECTION_H_

#include <openssl/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/http/client_pace.h"
#include "common/http/http_frame.h"

namespace sluice::http {

// The result of one step: progress, would block, or the end of the connection.
enum class Step { kProgress, kWait, kEnd };

struct Connection {
  enum class State { kHandshake, kReading, kWorking, kWriting };

  Connection() = default;
  ~Connection();  // closes the socket
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Owns `socket`, which is accepted and non-blocking. `tls` nullptr: plain HTTP without a handshake.
  void Open(int socket, SSL_CTX* tls);
  // `interest`: the epoll events to wait for before the next step.
  Step Handshake(uint32_t& interest) const;
  Step Receive(char* to, size_t size, size_t& received) const;
  Step Send(std::string_view bytes, size_t& sent) const;
  // Appends received bytes to `in`, but for those of a body's end that is cut. Returns how many it kept.
  size_t Keep(const char* bytes, size_t count);
  // The request at the beginning of `in`. Drops received bytes of a body's end that is cut, also from `counted`.
  Frame NextRequest(const FrameLimits& limits, size_t& counted);
  // Ends the server's side, so that the client reads the reply. A close alone would become a reset if the client still
  // sends.
  void ShutdownWrites() const;

  // Waits for the first byte of a request.
  bool IsIdle() const { return state == State::kReading && in.empty(); }

  State state = State::kHandshake;
  uint64_t id = 0;
  int fd = -1;
  std::string in, out;
  size_t written = 0;  // bytes of `out`
  bool close = false;  // after the reply
  bool is_continue_sent = false;
  size_t cut_bytes = 0;    // of the request's body, still to be received and dropped
  bool is_cut = false;     // the request is without the end of its body
  bool is_paused = false;  // it has a whole request, which its client's pace or limit does not let in yet
  uint64_t answered = 0;   // requests before the current one
  ClientAddress client{};
  std::chrono::steady_clock::time_point deadline, since;  // end and start of the current wait for the client
  uint32_t events = 0;                                    // registered with epoll

 private:
  SSL* ssl_ = nullptr;
};

}  // namespace sluice::http

#endif  // SLUICE_COMMON_HTTP_HTTP_CONNECTION_H_
