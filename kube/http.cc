#include "kube/http.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace sluice::kube {
namespace {

constexpr std::string_view kUnix = "unix:";

struct Url {
  bool tls = false;
  std::string host;  // without brackets
  int port = 0;
};

// nullopt: not of the form http[s]://HOST[:PORT] or http[s]://[IPV6][:PORT], with at most a slash behind it.
std::optional<Url> ParseUrl(std::string_view text) {
  Url url;
  url.tls = text.starts_with("https://");
  if (!url.tls && !text.starts_with("http://")) return std::nullopt;
  text.remove_prefix(url.tls ? 8 : 7);
  if (text.ends_with('/')) text.remove_suffix(1);
  const bool bracket = text.starts_with('[');
  const size_t end = bracket ? text.find(']') : std::min(text.find(':'), text.size());
  if (end == std::string_view::npos) return std::nullopt;
  url.host = text.substr(bracket ? 1 : 0, end - (bracket ? 1 : 0));
  text.remove_prefix(end + (bracket ? 1 : 0));
  if (url.host.empty() || url.host.find_first_of("/?#") != std::string::npos) return std::nullopt;
  url.port = url.tls ? 443 : 80;
  if (text.empty()) return url;
  const auto [rest, error] = std::from_chars(text.data() + 1, text.data() + text.size(), url.port);
  const bool number = text[0] == ':' && error == std::errc() && rest == text.data() + text.size();
  return number && url.port > 0 && url.port < 65536 ? std::optional(url) : std::nullopt;
}

}  // namespace

Connector::Connector(ClientConfig config, std::string user_agent)
    : config_(std::move(config)), agent_(std::move(user_agent)) {
  // OpenSSL writes to sockets without MSG_NOSIGNAL, so a closed connection would end the daemon with SIGPIPE.
  struct sigaction now{};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

std::unique_ptr<HttpClient> Connector::Make(std::chrono::milliseconds timeout) const {
  const bool is_local = config_.server.starts_with(kUnix);
  // A URL that cannot be read gives a host that no resolver finds, so that each call fails with the server's name.
  const Url url = is_local ? Url{} : ParseUrl(config_.server).value_or(Url{true, "invalid.", 443});
  std::unique_ptr<HttpClient> client;
  if (is_local) {
    client = std::make_unique<HttpClient>(config_.server.substr(kUnix.size()));
  } else if (!url.tls) {
    client = std::make_unique<HttpClient>(url.host, url.port);
  } else if (config_.cert_file.empty()) {
    client = std::make_unique<httplib::SSLClient>(url.host, url.port);
  } else {
    client = std::make_unique<httplib::SSLClient>(url.host, url.port, config_.cert_file, config_.key_file);
  }
  if (!client->is_valid()) return client;
  if (is_local) client->set_address_family(AF_UNIX);
  if (!config_.ca_file.empty()) client->set_ca_cert_path(config_.ca_file);
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
