// Addresses to listen at, and the server, over both families.
#include <httplib.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <string>

#include "common/http/http_server.h"
#include "common/http/listen_address.h"

namespace sluice {
namespace {

bool HasV6() {
  std::string ignored;
  const int fd = OpenListener({"::1", 0}, 1, &ignored);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// The host; "-": the text is refused.
std::string HostOf(const std::string& text) {
  const auto address = ParseListenAddress(text);
  return address ? address->host : "-";
}

HttpOptions At(const std::string& text) {
  HttpOptions options = HttpOptions::ForMetrics();
  options.address = *ParseListenAddress(text);
  return options;
}

// The body; empty: no answer.
std::string Fetch(const std::string& host, int port) {
  httplib::Client client("http://" + FormatHostPort(host, static_cast<unsigned>(port)));
  const auto result = client.Get("/x");
  return result ? result->body : "";
}

TEST_CASE("addresses to listen at") {
  CHECK(HostOf("0.0.0.0:9401") == "0.0.0.0");
  CHECK(HostOf("[fd00::1]:9401") == "fd00::1");
  CHECK(HostOf("[::]:9401") == "::");
  CHECK(HostOf(":9401") == "::");
  CHECK(ParseListenAddress(":65535")->port == 65535);
  CHECK(ParseListenAddress("127.0.0.1:0")->port == 0);
  for (const char* text :
       {"", "9401", ":", "host:80", "::1:80", "[::1]", "[]:80", "[127.0.0.1]:80", "[fd00::x]:80", ":65536", ":-1",
        ": 80", ":80 ", "127.0.0.1:8o", "[::1:80", "::1]:80", "[fe80::1%eth0]:80"}) {
    INFO(text);
    CHECK(HostOf(text) == "-");
  }
  CHECK(FormatHostPort("10.0.0.1", 80) == "10.0.0.1:80");
  CHECK(FormatHostPort("fd00::1", 80) == "[fd00::1]:80");
}

TEST_CASE("a server without an address answers over IPv4 and IPv6") {
  for (const char* text : {":0", "[::]:0"}) {
    HttpServer server(At(text));
    server.Get("/x", [](const HttpRequest& request) { return HttpReply{200, request.header("host")}; });
    REQUIRE(server.Start().empty());
    CHECK(Fetch("127.0.0.1", server.port()) == FormatHostPort("127.0.0.1", static_cast<unsigned>(server.port())));
    if (HasV6()) CHECK(Fetch("::1", server.port()) == FormatHostPort("::1", static_cast<unsigned>(server.port())));
  }
}

TEST_CASE("a server with an address answers there alone, and says where it cannot listen") {
  HttpServer server(At("127.0.0.1:0"));
  server.Get("/x", [](const HttpRequest&) { return HttpReply{503, "busy"}; });
  REQUIRE(server.Start().empty());
  CHECK(Fetch("127.0.0.1", server.port()) == "busy");
  if (HasV6()) CHECK(Fetch("::1", server.port()).empty());
  const std::string taken = "127.0.0.1:" + std::to_string(server.port());
  CHECK(HttpServer(At(taken)).Start() == "the server cannot listen at " + taken + ": Address already in use");
}

TEST_CASE("a listener's error has the address with brackets") {
  if (!HasV6()) SKIP("this kernel has no IPv6");
  std::string error;
  CHECK(OpenListener({"2001:db8::1", 1}, 1, &error) == -1);
  CHECK(error.starts_with("[2001:db8::1]:1: "));
}

}  // namespace
}  // namespace sluice
