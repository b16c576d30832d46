// A running Service, and clients for it. For the tests of webhook/server.
#ifndef SLUICE_TEST_WEBHOOK_SERVER_FIXTURE_H_
#define SLUICE_TEST_WEBHOOK_SERVER_FIXTURE_H_

#include <httplib.h>
#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "common/tls/rotation.h"
#include "webhook/server/service.h"

namespace sluice::webhook::test {

// A CA and a certificate for "localhost", made at `now`.
SecretData MakeCertificate(std::chrono::system_clock::time_point now = std::chrono::system_clock::now());

// Options for a free port of 127.0.0.1.
HttpOptions Loopback();

// A service that listens and has a certificate.
struct RunningService {
  explicit RunningService(HttpOptions https = Loopback());
  void Use(const SecretData& data);
  std::unique_ptr<httplib::SSLClient> Client() const;

  Service service;
  SecretData secret;
};

// An AdmissionReview of a pod with one container that requests `fraction`.
std::string ReviewBody(const std::string& uid, const std::string& fraction = "0.5");

// The status of a POST to /mutate; a negative value is httplib's error.
int Post(httplib::SSLClient& client, const std::string& body);

// A TLS connection for bytes that no ordinary client sends.
class RawClient {
 public:
  explicit RawClient(uint16_t port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool Handshake();
  // False: the server has closed the connection.
  bool Send(std::string_view text);
  std::string Receive();          // the next bytes
  std::string ReceiveUntilEnd();  // until the server closes

 private:
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  int fd_ = -1;
  bool is_connected_ = false;
};

// Sends `request` on a connection of its own and returns all bytes of the answer.
std::string Exchange(uint16_t port, std::string_view request);

}  // namespace sluice::webhook::test

#endif  // SLUICE_TEST_WEBHOOK_SERVER_FIXTURE_H_
