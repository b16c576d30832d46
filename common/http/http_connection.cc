#include "common/http/http_connection.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sluice::http {
namespace {

Step StepOf(int tls_error) {
  return tls_error == SSL_ERROR_WANT_READ || tls_error == SSL_ERROR_WANT_WRITE ? Step::kWait : Step::kEnd;
}

}  // namespace

Connection::~Connection() {
  if (ssl_ != nullptr) SSL_free(ssl_);
  if (fd >= 0) ::close(fd);
}

void Connection::Open(int socket, SSL_CTX* tls) {
  fd = socket;
  if (tls == nullptr) {
    state = State::kReading;
    return;
  }
  ssl_ = SSL_new(tls);
  SSL_set_fd(ssl_, fd);
  SSL_set_accept_state(ssl_);
}

Step Connection::Handshake(uint32_t& interest) const {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  if (done == 1) return Step::kProgress;
  const int error = SSL_get_error(ssl_, done);
  interest = error == SSL_ERROR_WANT_WRITE ? EPOLLOUT : EPOLLIN;
  return StepOf(error);
}

Step Connection::Receive(char* to, size_t size, size_t& received) const {
  if (ssl_ == nullptr) {
    const ssize_t n = recv(fd, to, size, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Step::kWait;
    if (n <= 0) return Step::kEnd;
    received = static_cast<size_t>(n);
    return Step::kProgress;
  }
  ERR_clear_error();
  if (SSL_read_ex(ssl_, to, size, &received) == 1) return Step::kProgress;
  return StepOf(SSL_get_error(ssl_, 0));
}

Step Connection::Send(std::string_view bytes, size_t& sent) const {
  if (ssl_ == nullptr) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Step::kWait;
    if (n < 0) return Step::kEnd;
    sent = static_cast<size_t>(n);
    return Step::kProgress;
  }
  ERR_clear_error();
  if (SSL_write_ex(ssl_, bytes.data(), bytes.size(), &sent) == 1) return Step::kProgress;
  return StepOf(SSL_get_error(ssl_, 0));
}

size_t Connection::Keep(const char* bytes, size_t count) {
  const size_t dropped = std::min(cut_bytes, count);
  cut_bytes -= dropped;
  in.append(bytes + dropped, count - dropped);
  return count - dropped;
}

Frame Connection::NextRequest(const FrameLimits& limits, size_t& counted) {
  if (cut_bytes > 0) return {};
  Frame frame = ReadFrame(in, limits);
  if (frame.state != Frame::State::kComplete || frame.cut_bytes == 0) return frame;
  const size_t dropped = std::min(frame.cut_bytes, in.size() - frame.total);
  CutBody(in, frame);
  in.erase(frame.total, dropped);
  counted -= dropped;
  cut_bytes = frame.cut_bytes - dropped;
  is_cut = true;
  return cut_bytes > 0 ? Frame{} : frame;
}

void Connection::ShutdownWrites() const {
  if (ssl_ != nullptr) SSL_shutdown(ssl_);
  shutdown(fd, SHUT_WR);
}

}  // namespace sluice::http
