// HTTP to the API server. Internal to kube/.
#ifndef SLUICE_KUBE_HTTP_H_
#define SLUICE_KUBE_HTTP_H_

#include <httplib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kube/client.h"

namespace sluice::kube {

// Of httplib's two classes the one that takes host and port: the other parses the URL itself, and knows no IPv6 address
// with a letter (https://[fd00::1]:443).
using HttpClient = httplib::ClientImpl;

// Makes HTTP clients from the configuration and the current content of its files.
class Connector {
 public:
  Connector(ClientConfig config, std::string user_agent);
  std::unique_ptr<HttpClient> Make(std::chrono::milliseconds timeout) const;
  httplib::Headers Headers(bool metadata_only, bool list) const;  // with the current token
  // Changes when a client must be replaced because a file (CA, client certificate) has changed.
  std::string Fingerprint() const;

 private:
  ClientConfig config_;
  std::string agent_;
};

absl::Status ToStatus(int http, const std::string& body);
absl::Status ToStatus(httplib::Error error, const std::string& server);

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_HTTP_H_
