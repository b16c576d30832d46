#include "server_fixture.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

namespace sluice::webhook::test {

SecretData MakeCertificate(std::chrono::system_clock::time_point now) {
  RotationOptions options;
  options.names = {"localhost"};
  return Rotate({}, now, {}, options).data;
}

HttpOptions Loopback() {
  HttpOptions o;
  o.address.host = "127.0.0.1";
  return o;
}

RunningService::RunningService(HttpOptions https)
    : service({}, std::move(https), Loopback(), [](const std::string&) {}), secret(MakeCertificate()) {
  Use(secret);
  REQUIRE(service.Start().empty());
}

void RunningService::Use(const SecretData& data) {
  std::string error;
  service.certificates().Set(KeyPair::Parse(data.at("tls.crt"), data.at("tls.key"), error));
  REQUIRE(error.empty());
}

std::unique_ptr<httplib::SSLClient> RunningService::Client() const {
  auto client = std::make_unique<httplib::SSLClient>("127.0.0.1", service.port());
  client->enable_server_certificate_verification(false);
  client->set_keep_alive(true);
  client->set_read_timeout(std::chrono::seconds(20));
  return client;
}

std::string ReviewBody(const std::string& uid, const std::string& fraction) {
  const Json review = {{"apiVersion", "admission.k8s.io/v1"},
                       {"kind", "AdmissionReview"},
                       {"request",
                        {{"uid", uid},
                         {"operation", "CREATE"},
                         {"namespace", "team-a"},
                         {"dryRun", true},
                         {"resource", {{"group", ""}, {"version", "v1"}, {"resource", "pods"}}},
                         {"object",
                          {{"metadata", {{"annotations", {{"sluice.dev/gpu-fraction", fraction}}}}},
                           {"spec", {{"containers", {{{"name", "a"}, {"image", "x"}}}}}}}}}}};
  return review.dump();
}

int Post(httplib::SSLClient& client, const std::string& body) {
  const auto r = client.Post("/mutate", body, "application/json");
  return r ? r->status : -static_cast<int>(r.error());
}

RawClient::RawClient(uint16_t port) : context_(SSL_CTX_new(TLS_client_method())) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  is_connected_ = fd_ >= 0 && connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
}

RawClient::~RawClient() {
  if (ssl_ != nullptr) SSL_free(ssl_);
  SSL_CTX_free(context_);
  close(fd_);
}

bool RawClient::Handshake() {
  ssl_ = SSL_new(context_);
  SSL_set_fd(ssl_, fd_);
  return is_connected_ && SSL_connect(ssl_) == 1;
}

bool RawClient::Send(std::string_view text) { return SSL_write(ssl_, text.data(), static_cast<int>(text.size())) > 0; }

std::string RawClient::Receive() {
  char chunk[4096];
  const int n = SSL_read(ssl_, chunk, sizeof(chunk));
  return {chunk, static_cast<size_t>(std::max(n, 0))};
}

std::string RawClient::ReceiveUntilEnd() {
  std::string out;
  for (std::string piece = Receive(); !piece.empty(); piece = Receive()) out += piece;
  return out;
}

std::string Exchange(uint16_t port, std::string_view request) {
  RawClient raw(port);
  REQUIRE(raw.Handshake());
  raw.Send(request);
  return raw.ReceiveUntilEnd();
}

}  // namespace sluice::webhook::test
