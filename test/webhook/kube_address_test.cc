// URLs of the API server, as kubeconfigs and pods of IPv6-only clusters have them.
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/http/http_server.h"
#include "common/http/listen_address.h"
#include "kube/client.h"

namespace sluice::kube {
namespace {

bool HasV6() {
  std::string ignored;
  const int fd = OpenListener({"::1", 0}, 1, &ignored);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// The kind of the object that the server at this URL has; else the error.
std::string KindAt(const std::string& server) {
  ClientConfig config;
  config.server = server;
  ClientOptions options;
  options.attempts = 1;
  options.timeout = std::chrono::milliseconds(2000);
  const auto object = Client(config, options).Get("/api/v1/nodes/n");
  return object.ok() ? (*object)["kind"].get<std::string>() : std::string(object.status().message());
}

TEST_CASE("the API server is reached by names, IPv4 and IPv6") {
  HttpServer api(HttpOptions{});
  api.Get("/api/v1/nodes/n",
          [](const HttpRequest&) { return HttpReply{200, R"({"kind":"Node"})", "application/json"}; });
  REQUIRE(api.Start().empty());
  const std::string port = std::to_string(api.port());
  CHECK(KindAt("http://127.0.0.1:" + port) == "Node");
  CHECK(KindAt("http://127.0.0.1:" + port + "/") == "Node");
  CHECK(KindAt("http://localhost:" + port) == "Node");
  if (HasV6()) {
    CHECK(KindAt("http://[::1]:" + port) == "Node");
    // With letters, as most addresses have: 127.0.0.1 as IPv6.
    CHECK(KindAt("http://[::ffff:7f00:1]:" + port) == "Node");
  }
}

TEST_CASE("a URL that cannot be read is an error with the URL") {
  for (const char* url : {"", "127.0.0.1:6443", "ftp://127.0.0.1", "http://", "http://[::1", "http://[::1]x",
                          "http://host:0", "http://host:99999", "http://host:6443x", "http://host/path"}) {
    const std::string said = KindAt(url);
    INFO(said);
    CHECK(said.starts_with(url));
    CHECK(said != "Node");
  }
}

TEST_CASE("in a pod the address of an IPv6-only cluster gets its brackets") {
  const std::string root = std::filesystem::temp_directory_path() / ("kube-" + std::to_string(getpid()));
  const std::string folder = root + "/var/run/secrets/kubernetes.io/serviceaccount";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/token") << "t";
  setenv("KUBERNETES_SERVICE_PORT", "443", 1);
  for (const auto& [host, url] :
       {std::pair{"fd00:10:96::1", "https://[fd00:10:96::1]:443"}, {"10.96.0.1", "https://10.96.0.1:443"}}) {
    setenv("KUBERNETES_SERVICE_HOST", host, 1);
    CHECK(InCluster(root)->server == url);
  }
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace sluice::kube
