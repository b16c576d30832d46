// Limits of the HTTP server: requests, connections and unread replies of one client beside another's.
#include <arpa/inet.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/http/client_pace.h"
#include "common/http/http_server.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

HttpOptions Loopback() {
  HttpOptions options;
  options.address.host = "127.0.0.1";
  return options;
}

// A connection whose bytes the test chooses. `from`: its own address.
class Raw {
 public:
  Raw(uint16_t port, const char* from, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from, &address.sin_addr);
    REQUIRE(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(port);
    REQUIRE(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~Raw() { close(fd_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  void Send(const std::string& bytes) const { (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // Whether the server has ended the connection.
  bool IsEnded() const {
    char byte;
    const ssize_t n = recv(fd_, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN);
  }

 private:
  const int fd_;
};

using Raws = std::vector<std::unique_ptr<Raw>>;

size_t Ended(const Raws& all) {
  size_t count = 0;
  for (const auto& raw : all) count += raw->IsEnded();
  return count;
}

TEST_CASE("one client's requests wait for its pace, and another's do not") {
  HttpOptions options;
  options.address.host = "127.0.0.1";
  options.requests_per_s = 10;
  HttpServer server(options);
  server.Get("/x", [](const HttpRequest&) { return HttpReply{200, "x"}; });
  REQUIRE(server.Start().empty());
  httplib::Client busy("127.0.0.1", server.port()), other("127.0.0.1", server.port());
  busy.set_keep_alive(true);
  other.set_interface("127.0.0.2");
  const auto begin = Clock::now();
  std::thread flood([&] {
    for (int i = 0; i < 35; ++i) CHECK(busy.Get("/x")->status == 200);
  });
  std::this_thread::sleep_for(500ms);
  const auto asked = Clock::now();
  CHECK(other.Get("/x")->status == 200);
  CHECK(Clock::now() - asked < 500ms);
  flood.join();
  CHECK(Clock::now() - begin > 1200ms);  // twenty at once, and ten a second
}

TEST_CASE("addresses without end share a bucket, and one that paused gets its own again") {
  http::ClientPace pace(1);
  http::ClientPace::Clock::time_point now{};
  http::ClientAddress a{};
  for (int i = 0; i < 10000; ++i) {
    a[0] = static_cast<unsigned char>(i);
    a[1] = static_cast<unsigned char>(i >> 8);
    if (i < 4096) {
      CHECK(pace.Take(a, now));
    } else {
      pace.Take(a, now);
    }
  }
  a[2] = 1;
  CHECK_FALSE(pace.Take(a, now));  // the shared one is empty
  now += 10s;
  CHECK(pace.Take(a, now));
  CHECK(pace.Take(a, now));
  CHECK_FALSE(pace.Take(a, now));
}

TEST_CASE("a request of a new connection comes before the hundredth of an old one") {
  HttpOptions options = Loopback();
  options.requests_per_s = 10;
  HttpServer server(options);
  server.Get("/x", [](const HttpRequest&) { return HttpReply{200, "x"}; });
  REQUIRE(server.Start().empty());
  Raws greedy;
  for (int i = 0; i < 30; ++i) {
    greedy.push_back(std::make_unique<Raw>(server.port(), "127.0.0.1"));
    for (int n = 0; n < 20; ++n) greedy.back()->Send("GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  std::this_thread::sleep_for(2500ms);  // all had their first one
  const auto asked = Clock::now();
  CHECK(httplib::Client("127.0.0.1", server.port()).Get("/x")->status == 200);
  CHECK(Clock::now() - asked < 500ms);  // one turn of the pace, and not thirty
}

TEST_CASE("one client's connections above its limit close its own oldest") {
  HttpOptions options = Loopback();
  options.max_connections = 16;
  options.max_connections_per_client = 8;
  HttpServer server(options);
  server.Get("/x", [](const HttpRequest&) { return HttpReply{200, "x"}; });
  REQUIRE(server.Start().empty());
  const Raw other(server.port(), "127.0.0.2");
  Raws many;
  for (int i = 0; i < 100; ++i) many.push_back(std::make_unique<Raw>(server.port(), "127.0.0.1"));
  for (int i = 0; i < 100 && Ended(many) < 92; ++i) std::this_thread::sleep_for(20ms);
  CHECK(Ended(many) == 92);
  CHECK_FALSE(many.back()->IsEnded());
  CHECK_FALSE(other.IsEnded());
}

TEST_CASE("where all connections are taken, the client that has most of them loses one") {
  HttpOptions options = Loopback();
  options.max_connections = 16;
  HttpServer server(options);
  REQUIRE(server.Start().empty());
  Raws calm, many;
  for (int i = 0; i < 4; ++i) calm.push_back(std::make_unique<Raw>(server.port(), "127.0.0.2"));
  for (int i = 0; i < 200; ++i) many.push_back(std::make_unique<Raw>(server.port(), "127.0.0.1"));
  for (int i = 0; i < 100 && Ended(many) < 188; ++i) std::this_thread::sleep_for(20ms);
  CHECK(Ended(many) == 188);
  CHECK(Ended(calm) == 0);
}

TEST_CASE("where too many bytes are received, the client with most of them loses a connection") {
  HttpOptions options = Loopback();
  options.max_buffered_bytes = 4 << 20;
  std::atomic<int> displaced{0};
  options.on_refused = [&](const char* reason) { displaced += std::string_view(reason) == "displaced"; };
  HttpServer server(options);
  REQUIRE(server.Start().empty());
  const std::string header = "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n";
  const Raw slow(server.port(), "127.0.0.2");  // the oldest, and a small part of the bytes
  slow.Send(header + "x");
  std::this_thread::sleep_for(50ms);
  Raws many;
  for (int i = 0; i < 4; ++i) {
    many.push_back(std::make_unique<Raw>(server.port(), "127.0.0.1"));
    many.back()->Send(header + std::string(2 << 20, 'x'));
    std::this_thread::sleep_for(50ms);
  }
  for (int i = 0; i < 100 && displaced < 2; ++i) std::this_thread::sleep_for(20ms);
  CHECK(displaced >= 2);
  CHECK(Ended(many) >= 2);
  CHECK_FALSE(slow.IsEnded());
}

TEST_CASE("a request for parts of a reply is refused: thousands of ranges would each be a copy of it") {
  HttpServer server(Loopback());
  server.Get("/x", [](const HttpRequest&) { return HttpReply{200, std::string(20000, 'x')}; });
  REQUIRE(server.Start().empty());
  std::string ranges = "bytes=-";
  for (int i = 0; i < 2000; ++i) ranges += ",-";
  const auto answer = httplib::Client("127.0.0.1", server.port()).Get("/x", httplib::Headers{{"Range", ranges}});
  REQUIRE(answer);
  CHECK(answer->status == 416);
  CHECK(answer->body.size() < 200);
}

// Starts the server, and clients that request a reply larger than a socket's buffer and read nothing.
Raws StalledReaders(HttpServer& server, int count) {
  server.Get("/large", [](const HttpRequest&) { return HttpReply{200, std::string(8 << 20, 'x')}; });
  server.Get("/healthz", [](const HttpRequest&) { return HttpReply{200, "ok"}; });
  REQUIRE(server.Start().empty());
  Raws readers;
  for (int i = 0; i < count; ++i) {
    readers.push_back(std::make_unique<Raw>(server.port(), "127.0.0.1", 4096));
    readers.back()->Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  return readers;
}

void CheckProbe(HttpServer& server) {
  const auto asked = Clock::now();
  const auto answer = httplib::Client("127.0.0.1", server.port()).Get("/healthz");
  REQUIRE(answer);
  CHECK(answer->status == 200);
  CHECK(Clock::now() - asked < 1s);
}

TEST_CASE("replies that no one reads hold neither all connections nor much memory") {
  HttpOptions options = Loopback();
  options.max_connections = 16;
  options.max_unread_bytes = 24 << 20;
  options.queue_timeout = 60s;  // a sanitizer takes a quarter of a second for each of these replies
  std::atomic<int> displaced{0};
  options.on_refused = [&](const char* reason) { displaced += std::string_view(reason) == "displaced"; };
  HttpServer server(options);
  const Raws readers = StalledReaders(server, 16);
  for (int i = 0; i < 500 && (displaced < 13 || server.connections() > 3); ++i) std::this_thread::sleep_for(20ms);
  CHECK(server.connections() <= 3);  // three replies lie below the limit of bytes
  CheckProbe(server);
}

TEST_CASE("a client's unread replies close none of another client that reads slowly") {
  HttpOptions options = Loopback();
  options.max_unread_bytes = 24 << 20;
  options.queue_timeout = 60s;  // a sanitizer takes a quarter of a second for each of these replies
  std::atomic<int> displaced{0};
  options.on_refused = [&](const char* reason) { displaced += std::string_view(reason) == "displaced"; };
  HttpServer server(options);
  server.Get("/small", [](const HttpRequest&) { return HttpReply{200, std::string(6 << 20, 'x')}; });
  const Raws readers = StalledReaders(server, 2);
  const Raw slow(server.port(), "127.0.0.2", 4096);
  slow.Send("GET /small HTTP/1.1\r\nHost: x\r\n\r\n");
  std::this_thread::sleep_for(300ms);
  Raws more;
  for (int i = 0; i < 6; ++i) {
    more.push_back(std::make_unique<Raw>(server.port(), "127.0.0.1", 4096));
    more.back()->Send("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  for (int i = 0; i < 200 && displaced < 5; ++i) std::this_thread::sleep_for(20ms);
  CHECK(displaced >= 5);
  CHECK_FALSE(slow.IsEnded());
}

TEST_CASE("sixteen readers that do not read leave a connection for the seventeenth") {
  HttpOptions options = Loopback();
  options.max_connections = 16;
  options.max_unread_bytes = size_t{1} << 30;
  HttpServer server(options);
  const Raws readers = StalledReaders(server, 16);
  std::this_thread::sleep_for(500ms);
  CheckProbe(server);
}

}  // namespace
}  // namespace sluice
