// The server under slow clients and overload.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "server_fixture.h"

namespace {

using namespace sluice;                 // NOLINT(google-build-using-namespace)
using namespace sluice::webhook;        // NOLINT(google-build-using-namespace): the library under test
using namespace sluice::webhook::test;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

}  // namespace

TEST_CASE("normal requests succeed beside 500 slow connections, which the deadline closes") {
  HttpOptions options = Loopback();
  options.request_timeout = 3s;
  options.handshake_timeout = 3s;
  const RunningService r(options);
  std::vector<std::unique_ptr<RawClient>> slow;
  for (int i = 0; i < 500; ++i) {
    slow.push_back(std::make_unique<RawClient>(r.service.port()));
    if (i % 5 != 0) continue;  // the others send no TLS hello
    REQUIRE(slow.back()->Handshake());
    slow.back()->Send("POST /mutate HTTP/1.1\r\nContent-Le");
  }
  const auto client = r.Client();
  for (int i = 0; i < 200; ++i) REQUIRE(Post(*client, ReviewBody("u")) == 200);
  CHECK(slow[0]->ReceiveUntilEnd().empty());  // returns when the server has closed it
  for (int i = 0; i < 100 && r.service.metrics_port() != 0; ++i) {
    const auto text = httplib::Client("127.0.0.1", r.service.metrics_port()).Get("/metrics");
    REQUIRE(text);
    if (text->body.find("sluice_webhook_connections 1\n") != std::string::npos) break;
    REQUIRE(i < 99);
    std::this_thread::sleep_for(100ms);
  }
}

TEST_CASE("a client that sends one byte at a time is closed at the request's deadline") {
  HttpOptions options = Loopback();
  options.request_timeout = 1s;
  const RunningService r(options);
  RawClient slow(r.service.port());
  REQUIRE(slow.Handshake());
  // Each byte comes well before a timeout of the single read; only a deadline of the whole request ends this.
  int sent = 0;
  while (sent < 100 && slow.Send("G")) {
    ++sent;
    std::this_thread::sleep_for(100ms);
  }
  CHECK(sent < 100);
}

TEST_CASE("a header without an end is refused at 16 KiB") {
  const RunningService r;
  RawClient raw(r.service.port());
  REQUIRE(raw.Handshake());
  REQUIRE(raw.Send("GET /healthz HTTP/1.1\r\nX: "));
  const std::string piece(4096, 'a');
  int pieces = 0;
  while (pieces < 10000 && raw.Send(piece)) ++pieces;
  CHECK(pieces < 10000);  // 40 MB; the socket buffers hold less
}

TEST_CASE("an idle connection does not delay the shutdown") {
  RunningService r;
  const auto client = r.Client();
  REQUIRE(Post(*client, ReviewBody("u")) == 200);
  const auto start = std::chrono::steady_clock::now();
  r.service.Drain(10s);
  CHECK(std::chrono::steady_clock::now() - start < 5s);
}

TEST_CASE("a connection above the limit closes the one that has waited longest") {
  HttpOptions options = Loopback();
  options.max_connections = 8;
  const RunningService r(options);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<RawClient>(r.service.port()));
  CHECK(Post(*r.Client(), ReviewBody("u")) == 200);
}

TEST_CASE("an overloaded server replies 503 at once and recovers") {
  HttpOptions options = Loopback();
  options.max_queued = 1;
  options.workers = 1;
  const RunningService r(options);
  std::atomic<int> good = 0, refused = 0, other = 0;
  {
    Json large = Json::parse(ReviewBody("u"));
    for (int i = 0; i < 2000; ++i) {
      large["request"]["object"]["spec"]["containers"].push_back({{"name", "c" + std::to_string(i)}, {"image", "x"}});
    }
    large["request"]["object"]["metadata"]["annotations"] = {{"gpu-fraction.sluice.dev/a", "0.5"}};
    const std::string body = large.dump();
    std::vector<std::jthread> clients;
    for (int t = 0; t < 8; ++t) {
      clients.emplace_back([&] {
        const auto client = r.Client();
        for (int i = 0; i < 25; ++i) {
          const int status = Post(*client, body);
          ++(status == 200 ? good : status == 503 ? refused : other);
        }
      });
    }
  }
  INFO(good << " answered, " << refused << " refused, " << other << " otherwise");
  CHECK(good > 0);
  CHECK(refused > 0);
  CHECK(other == 0);
  CHECK(Post(*r.Client(), ReviewBody("u")) == 200);
}

TEST_CASE("each of 3,000 pipelined requests in one write gets its own refusal") {
  HttpOptions options = Loopback();
  options.max_queued = 0;
  const RunningService r(options);
  std::string requests;
  constexpr int kCount = 3000;
  for (int i = 1; i < kCount; ++i) requests += "GET /healthz HTTP/1.1\r\n\r\n";
  requests += "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
  RawClient raw(r.service.port());
  REQUIRE(raw.Handshake());
  std::jthread writer([&] { raw.Send(requests); });  // while this thread reads: no buffer holds all the bytes
  const std::string replies = raw.ReceiveUntilEnd();
  int refused = 0;
  for (size_t at = 0; (at = replies.find("HTTP/1.1 503", at)) != std::string::npos; ++at) ++refused;
  CHECK(refused == kCount);
}

TEST_CASE("without free descriptors, the oldest connections are closed and the newest is answered") {
  int to_clients[2], from_clients[2];
  REQUIRE(pipe(to_clients) == 0);
  REQUIRE(pipe(from_clients) == 0);
  // The clients run in a process of their own, because the server's process has no descriptors left.
  const pid_t child = fork();
  if (child == 0) {
    uint16_t port = 0;
    int good = 0;
    if (read(to_clients[0], &port, sizeof(port)) == sizeof(port)) {
      std::vector<std::unique_ptr<RawClient>> idle;
      for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<RawClient>(port));
      RawClient last(port);
      if (last.Handshake()) {
        last.Send("GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n");
        good = last.ReceiveUntilEnd().starts_with("HTTP/1.1 200") ? 1 : 0;
      }
    }
    (void)!write(from_clients[1], &good, sizeof(good));
    _exit(0);
  }
  int good = 0;
  {
    const RunningService r;
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit lowered{100, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
    const uint16_t port = r.service.port();
    REQUIRE(write(to_clients[1], &port, sizeof(port)) == sizeof(port));
    REQUIRE(read(from_clients[0], &good, sizeof(good)) == sizeof(good));
    setrlimit(RLIMIT_NOFILE, &before);
  }
  CHECK(good == 1);
  waitpid(child, nullptr, 0);
  for (const int fd : {to_clients[0], to_clients[1], from_clients[0], from_clients[1]}) close(fd);
}
