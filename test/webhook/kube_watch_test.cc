// The contract of kube/ against a real API server: watches across restarts and broken links. apiserver.py runs it.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "kube/watcher.h"
#include "kube_fixture.h"

namespace {

using namespace sluice::kube;        // NOLINT(google-build-using-namespace): the library under test
using namespace sluice::kube::test;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

// Records the events of a watcher.
class Mirror {
 public:
  WatchHandler Handler() {
    WatchHandler h;
    const auto name = [](const Json& object, std::vector<std::string>& list) {
      list.push_back(object["metadata"]["name"]);
    };
    CollectLists<std::string>(h, name, [this](const std::vector<std::string>& names) {
      const std::lock_guard lock(mutex_);
      names_ = {names.begin(), names.end()};
      ++lists_;
    });
    h.changed = [this](Change change, const Json& o) {
      const std::lock_guard lock(mutex_);
      if (change == Change::kDeleted) {
        names_.erase(o["metadata"]["name"]);
      } else {
        names_.insert(o["metadata"]["name"]);
      }
    };
    h.state = [this](bool up, const std::string&) {
      up_ = up;
      ++state_events_;
    };
    return h;
  }
  bool Has(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return names_.contains(name);
  }
  int lists() const { return lists_; }
  bool up() const { return up_; }
  int state_events() const { return state_events_; }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
  std::atomic<int> lists_ = 0, state_events_ = 0;
  std::atomic<bool> up_ = false;
};

// A TCP relay to the API server that a test can cut. TLS passes through unchanged.
class Link {
 public:
  explicit Link(const std::string& server)
      : to_(static_cast<uint16_t>(std::stoi(server.substr(server.rfind(':') + 1)))) {
    listener_ = Socket();
    sockaddr_in any = Loopback(0);
    socklen_t size = sizeof(any);
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&any), size) == 0);
    REQUIRE(listen(listener_, 16) == 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size);
    port_ = ntohs(any.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~Link() {
    stop_ = true;
    thread_.join();
    close(listener_);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  std::string server() const { return "https://127.0.0.1:" + std::to_string(port_); }
  void Cut() { cut_ = true; }
  void Restore() { cut_ = false; }

 private:
  static int Socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }
  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
  }
  void Run() {
    std::map<int, int> peer;
    while (!stop_) {
      std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
      for (const auto& [fd, other] : peer) fds.push_back({fd, POLLIN, 0});
      poll(fds.data(), fds.size(), 20);
      if (cut_) {
        for (const auto& [fd, other] : peer) close(fd);
        peer.clear();
      }
      if (fds[0].revents != 0) Accept(peer);
      for (size_t i = 1; i < fds.size(); ++i) {
        const auto it = peer.find(fds[i].fd);
        if (fds[i].revents == 0 || it == peer.end()) continue;
        char bytes[65536];
        const ssize_t n = read(it->first, bytes, sizeof(bytes));
        if (n > 0 && send(it->second, bytes, static_cast<size_t>(n), MSG_NOSIGNAL) == n) continue;
        const int other = it->second;
        close(it->first);
        close(other);
        peer.erase(it);
        peer.erase(other);
      }
    }
    for (const auto& [fd, other] : peer) close(fd);
  }
  void Accept(std::map<int, int>& peer) const {
    const int in = accept(listener_, nullptr, nullptr);
    const int out = Socket();
    const sockaddr_in to = Loopback(to_);
    if (in >= 0 && out >= 0 && !cut_ && connect(out, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
      peer[in] = out;
      peer[out] = in;
      return;
    }
    if (in >= 0) close(in);
    close(out);
  }

  const uint16_t to_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> cut_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("a watch sees all changes, continues after a restart of the API server, and stops within 5 s") {
  Client client(ByCertificate());
  REQUIRE(client.Create(kConfigMaps, ConfigMap("before")).ok());
  Mirror mirror;
  ListOptions options;
  options.label_selector = "suite=kube";
  options.metadata_only = true;
  auto watcher = std::make_unique<Watcher>(ByCertificate(), kConfigMaps, options, mirror.Handler());
  CHECK(Wait([&] { return mirror.Has("before") && mirror.up(); }));
  REQUIRE(client.Create(kConfigMaps, ConfigMap("during")).ok());
  CHECK(Wait([&] { return mirror.Has("during"); }));
  CHECK(client.Delete(std::string(kConfigMaps) + "/during").ok());
  CHECK(Wait([&] { return !mirror.Has("during"); }));

  REQUIRE(std::system(SLUICE_TEST_APISERVER " restart") == 0);
  REQUIRE(Wait([&] { return client.Create(kConfigMaps, ConfigMap("after")).ok(); }));
  CHECK(Wait([&] { return mirror.Has("after") && mirror.up(); }));
  CHECK(mirror.lists() <= 2);  // the watch continues from its version, or lists once more if the version is gone
  CHECK(client.Delete(std::string(kConfigMaps) + "/before").ok());
  CHECK(Wait([&] { return !mirror.Has("before"); }));
  const auto start = std::chrono::steady_clock::now();
  watcher.reset();
  CHECK(std::chrono::steady_clock::now() - start < 5s);
  CHECK(client.Delete(std::string(kConfigMaps) + "/after").ok());
}

TEST_CASE("a watch whose version was compacted away lists again and misses nothing") {
  Client client(ByCertificate());
  REQUIRE(client.Create(kConfigMaps, ConfigMap("deleted")).ok());
  Link link(ByCertificate().server);
  ClientConfig config = ByCertificate();
  config.server = link.server();
  Mirror mirror;
  ListOptions options;
  options.label_selector = "suite=kube";
  const Watcher watcher(config, kConfigMaps, options, mirror.Handler());
  CHECK(Wait([&] { return mirror.Has("deleted") && mirror.up(); }));
  CHECK(mirror.lists() == 1);

  link.Cut();
  CHECK(Wait([&] { return !mirror.up(); }));
  CHECK(client.Delete(std::string(kConfigMaps) + "/deleted").ok());
  REQUIRE(client.Create(kConfigMaps, ConfigMap("created")).ok());
  // A new API server knows no event from before its start, and answers 410 to a request for them.
  REQUIRE(std::system(SLUICE_TEST_APISERVER " restart") == 0);
  REQUIRE(Wait([&] { return client.Get("/api/v1/namespaces/default").ok(); }));
  link.Restore();
  CHECK(Wait([&] { return mirror.up() && mirror.Has("created"); }));
  CHECK(mirror.lists() == 2);
  CHECK(!mirror.Has("deleted"));
  // The watch still follows.
  CHECK(client.Delete(std::string(kConfigMaps) + "/created").ok());
  CHECK(Wait([&] { return !mirror.Has("created"); }));
}

TEST_CASE("a watch waits for an API server that is unreachable at the start") {
  Link link(ByCertificate().server);
  link.Cut();
  ClientConfig config = ByCertificate();
  config.server = link.server();
  Client client(config, {.attempts = 1});
  CHECK(absl::IsUnavailable(client.Get("/api/v1/namespaces/default").status()));
  Mirror mirror;
  const Watcher watcher(config, "/api/v1/namespaces", {}, mirror.Handler());
  CHECK(Wait([&] { return mirror.state_events() > 1; }));
  CHECK(!mirror.up());
  link.Restore();
  CHECK(Wait([&] { return mirror.up() && mirror.Has("default"); }));
  CHECK(client.Get("/api/v1/namespaces/default").ok());
}
