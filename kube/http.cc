#include "kube/http.h"

#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <sstream>

namespace sluice::kube {
namespace {

constexpr std::string_view kUnix = "unix:";

}  // namespace

Connector::Connector(ClientConfig config, std::string user_agent)
    : config_(std::move(config)), agent_(std::move(user_agent)) {
  // OpenSSL writes to sockets without MSG_NOSIGNAL, so a closed connection would end the daemon with SIGPIPE.
  struct sigaction now{};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

std::unique_ptr<httplib::Client> Connector::Make(std::chrono::milliseconds timeout) const {
  const bool is_local = config_.server.starts_with(kUnix);
  auto client = is_local ? std::make_unique<httplib::Client>(config_.server.substr(kUnix.size()))
                : config_.cert_file.empty()
                    ? std::make_unique<httplib::Client>(config_.server)
                    : std::make_unique<httplib::Client>(config_.server, config_.cert_file, config_.key_file);
  if (!client->is_valid()) return client;
  if (is_local) client->set_address_family(AF_UNIX);
  if (!config_.ca_file.empty()) client->set_ca_cert_path(config_.ca_file.c_str());
  client->enable_server_certificate_verification(true);
  client->set_keep_alive(true);
  client->set_tcp_nodelay(true);
  client->set_connection_timeout(timeout);
  client->set_read_timeout(timeout);
  client->set_write_timeout(timeout);
  return client;
}

httplib::Headers Connector::Headers(bool metadata_only, bool list) const {
  httplib::Headers headers = {{"User-Agent", agent_}};
  if (config_.server.starts_with(kUnix)) headers.emplace("Host", "localhost");
  if (metadata_only) {
    const std::string kind = list ? "PartialObjectMetadataList" : "PartialObjectMetadata";
    headers.emplace("Accept", "application/json;as=" + kind + ";g=meta.k8s.io;v=v1,application/json");
  } else {
    headers.emplace("Accept", "application/json");
  }
  if (config_.token_file.empty()) return headers;
  std::ifstream in(config_.token_file, std::ios::binary);
  std::string token;
  std::getline(in, token);
  if (!token.empty()) headers.emplace("Authorization", "Bearer " + token);
  return headers;
}

std::string Connector::Fingerprint() const {
  std::string out;
  for (const std::string* path : {&config_.ca_file, &config_.cert_file, &config_.key_file}) {
    struct stat s{};
    if (path->empty() || stat(path->c_str(), &s) != 0) continue;
    out += std::to_string(s.st_ino) + "." + std::to_string(s.st_size) + "." + std::to_string(s.st_mtim.tv_sec) + "." +
           std::to_string(s.st_mtim.tv_nsec) + ";";
  }
  return out;
}

absl::Status ToStatus(int http, const std::string& body) {
  if (http >= 200 && http < 300) return absl::OkStatus();
  std::string message = "HTTP " + std::to_string(http);
  std::string reason;
  const Json status = Json::parse(body, nullptr, false);
  if (status.is_object()) {
    if (const auto it = status.find("message"); it != status.end() && it->is_string())
      message += ": " + it->get<std::string>();
    if (const auto it = status.find("reason"); it != status.end() && it->is_string()) reason = *it;
  } else if (!body.empty()) {
    message += ": " + body.substr(0, 200);
  }
  switch (http) {
    case 400:
    case 422:
      return absl::InvalidArgumentError(message);
    case 401:
      return absl::UnauthenticatedError(message);
    case 403:
      return absl::PermissionDeniedError(message);
    case 404:
      return absl::NotFoundError(message);
    case 409:
      return reason == "AlreadyExists" ? absl::AlreadyExistsError(message) : absl::AbortedError(message);
    case 410:
      return absl::OutOfRangeError(message);
    case 429:
      return absl::ResourceExhaustedError(message);
    default:
      return http >= 500 ? absl::UnavailableError(message) : absl::UnknownError(message);
  }
}

absl::Status ToStatus(httplib::Error error, const std::string& server) {
  const bool identity = error == httplib::Error::SSLServerVerification || error == httplib::Error::SSLLoadingCerts;
  return absl::UnavailableError(
      server + ": " + (identity ? "the server's certificate is not signed by our CA" : httplib::to_string(error)));
}

}  // namespace sluice::kube
