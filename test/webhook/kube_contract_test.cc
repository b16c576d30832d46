// The contract of kube/ against a real API server. Run below apiserver.py, which gives KUBECONFIG and SLUICE_APISERVER.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "kube/lease.h"
#include "kube/watcher.h"

namespace {

using namespace sluice::kube;  // NOLINT(google-build-using-namespace): the library under test
using namespace std::chrono_literals;

const char* Folder() { return std::getenv("SLUICE_APISERVER"); }

ClientConfig ByCertificate() {
  const char* const file = std::getenv("KUBECONFIG");
  REQUIRE(file != nullptr);
  auto config = FromKubeconfig(file);
  REQUIRE(config.ok());
  return *config;
}

ClientConfig ByToken(const std::string& token_file) {
  ClientConfig c;
  c.server = ByCertificate().server;
  c.ca_file = std::string(Folder()) + "/ca.crt";
  c.token_file = token_file;
  return c;
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

Json ConfigMap(const std::string& name) {
  return {{"apiVersion", "v1"}, {"kind", "ConfigMap"}, {"metadata", {{"name", name}, {"labels", {{"suite", "kube"}}}}}};
}

constexpr char kMaps[] = "/api/v1/namespaces/default/configmaps";

bool Wait(const std::function<bool()>& condition, std::chrono::seconds limit = 60s) {
  for (const auto end = std::chrono::steady_clock::now() + limit; std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(50ms);
  }
  return false;
}

// What a watcher has told.
class Mirror {
 public:
  WatchHandler Handler() {
    WatchHandler h;
    h.replaced = [this](const std::vector<Json>& items) {
      const std::lock_guard lock(mutex_);
      names_.clear();
      for (const Json& i : items) names_.insert(i["metadata"]["name"]);
      ++lists_;
    };
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
      ++told_;
    };
    return h;
  }
  bool Has(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return names_.contains(name);
  }
  int lists() const { return lists_; }
  bool up() const { return up_; }
  int told() const { return told_; }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
  std::atomic<int> lists_ = 0, told_ = 0;
  std::atomic<bool> up_ = false;
};

// A link to the API server that a test can cut: TLS passes through as it is.
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
  void Mend() { cut_ = false; }

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

TEST_CASE("objects: create, read, update, patch, delete, and each failure by its code") {
  Client client(ByCertificate());
  CHECK(absl::IsNotFound(client.Get(std::string(kMaps) + "/none").status()));
  auto made = client.Create(kMaps, ConfigMap("one"));
  REQUIRE(made.ok());
  CHECK(absl::IsAlreadyExists(client.Create(kMaps, ConfigMap("one")).status()));
  CHECK(absl::IsInvalidArgument(client.Create(kMaps, ConfigMap("Not A Name")).status()));
  const std::string path = std::string(kMaps) + "/one";

  Json mine = *made;
  mine["data"]["a"] = "1";
  auto updated = client.Update(path, mine);
  REQUIRE(updated.ok());
  mine["data"]["a"] = "2";  // still the first resourceVersion
  CHECK(absl::IsAborted(client.Update(path, mine).status()));

  REQUIRE(client.Patch(path, {{"data", {{"b", "2"}}}}, PatchType::kMerge).ok());
  REQUIRE(client.Patch(path, {{{"op", "add"}, {"path", "/data/c"}, {"value", "3"}}}, PatchType::kJson).ok());
  REQUIRE(client.Patch(path, {{"data", {{"d", "4"}}}}, PatchType::kStrategic).ok());
  Json applied = ConfigMap("one");
  applied["data"] = {{"e", "5"}};
  REQUIRE(client.Patch(path, applied, PatchType::kApply).ok());
  const auto read = client.Get(path);
  REQUIRE(read.ok());
  CHECK((*read)["data"] == Json{{"a", "1"}, {"b", "2"}, {"c", "3"}, {"d", "4"}, {"e", "5"}});
  CHECK(absl::IsAborted(client.Delete(path, {{"preconditions", {{"uid", "another"}}}})));
  CHECK(client.Delete(path, {{"preconditions", {{"uid", (*read)["metadata"]["uid"]}}}}).ok());
  CHECK(absl::IsNotFound(client.Delete(path)));
}

TEST_CASE("a Lease has one holder; the next waits for its whole duration, or for its release") {
  Client a(ByCertificate()), b(ByCertificate());
  const auto options = [](const char* identity) {
    return LeaseOptions{"default", "leader", identity, std::chrono::seconds(15)};
  };
  Lease first(a, options("first")), second(b, options("second"));
  using Time = Lease::Time;
  const Time start{1000s};  // the Lease goes by the time it is told
  REQUIRE(first.Tick(start).ok());
  REQUIRE(second.Tick(start).ok());
  CHECK(first.Held(start));
  CHECK(!second.Held(start));
  // Renewed in time: stays. Not renewed: ends before the other may take it.
  REQUIRE(first.Tick(start + 5s).ok());
  REQUIRE(second.Tick(start + 15s).ok());  // sees the renewal
  CHECK(!second.Held(start + 15s));
  CHECK(!first.Held(start + 15s));
  REQUIRE(second.Tick(start + 29s).ok());
  CHECK(!second.Held(start + 29s));
  REQUIRE(second.Tick(start + 30s).ok());
  CHECK(second.Held(start + 30s));
  REQUIRE(first.Tick(start + 30s).ok());
  CHECK(!first.Held(start + 30s));
  second.Release();
  CHECK(!second.Held(start + 31s));
  REQUIRE(first.Tick(start + 31s).ok());
  CHECK(first.Held(start + 31s));
  CHECK(a.Delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/leader").ok());

  // Many at once on a Lease that nobody holds: exactly one.
  std::atomic<int> held = 0;
  std::vector<std::jthread> crowd;
  for (int i = 0; i < 6; ++i) {
    crowd.emplace_back([&, i] {
      Client own(ByCertificate());
      Lease mine(own, {"default", "crowd", "replica-" + std::to_string(i), std::chrono::seconds(15)});
      (void)mine.Tick(start);
      held += mine.Held(start) ? 1 : 0;
    });
  }
  crowd.clear();
  CHECK(held == 1);
  CHECK(a.Delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/crowd").ok());
}

TEST_CASE("Modify: writers that meet all get their change in") {
  Client client(ByCertificate());
  REQUIRE(client.Create(kMaps, ConfigMap("shared")).ok());
  const std::string path = std::string(kMaps) + "/shared";
  std::vector<std::jthread> writers;
  std::atomic<int> failed = 0;
  for (int w = 0; w < 3; ++w) {
    writers.emplace_back([&, w] {
      Client own(ByCertificate());
      for (int i = 0; i < 3; ++i) {
        const auto done = own.Modify(path, [&](Json& o) {
          o["data"][std::to_string(w) + "-" + std::to_string(i)] = "x";
          return true;
        });
        failed += done.ok() ? 0 : 1;
      }
    });
  }
  writers.clear();
  CHECK(failed == 0);
  CHECK((*client.Get(path))["data"].size() == 9);
  CHECK(client.Delete(path).ok());
}

TEST_CASE("lists come in pages, by selector, as metadata alone") {
  Client client(ByCertificate());
  for (int i = 0; i < 7; ++i) {
    Json map = ConfigMap("page-" + std::to_string(i));
    map["metadata"]["labels"]["pages"] = "yes";
    map["data"] = {{"big", std::string(1000, 'x')}};
    REQUIRE(client.Create(kMaps, map).ok());
  }
  ListOptions options;
  options.label_selector = "pages=yes";
  options.page = 3;
  options.metadata_only = true;
  const auto list = client.GetList(kMaps, options);
  REQUIRE(list.ok());
  CHECK(list->items.size() == 7);
  CHECK(!list->resource_version.empty());
  CHECK(!list->items[0].contains("data"));
  options.field_selector = "metadata.name=page-4";
  CHECK(client.GetList(kMaps, options)->items.size() == 1);
  for (int i = 0; i < 7; ++i) CHECK(client.Delete(std::string(kMaps) + "/page-" + std::to_string(i)).ok());
}

TEST_CASE("a version that is compacted away is 410") {
  Client client(ByCertificate());
  REQUIRE(client.Create(kMaps, ConfigMap("old")).ok());
  CHECK(client.Delete(std::string(kMaps) + "/old").ok());
  const std::string path = std::string(kMaps) + "?resourceVersion=2&resourceVersionMatch=Exact&limit=1";
  CHECK(Wait([&] { return absl::IsOutOfRange(client.Get(path).status()); }));
}

TEST_CASE("throttled requests are 429, and are repeated as the server says") {
  Client admin(ByCertificate());
  constexpr char kFlow[] = "/apis/flowcontrol.apiserver.k8s.io/v1/";
  REQUIRE(
      admin
          .Create(std::string(kFlow) + "prioritylevelconfigurations", {{"metadata", {{"name", "none"}}},
                                                                       {"spec",
                                                                        {{"type", "Limited"},
                                                                         {"limited",
                                                                          {{"nominalConcurrencyShares", 0},
                                                                           {"lendablePercent", 0},
                                                                           {"borrowingLimitPercent", 0},
                                                                           {"limitResponse", {{"type", "Reject"}}}}}}}})
          .ok());
  const auto level =
      admin.Create(std::string(kFlow) + "prioritylevelconfigurations",
                   Json::parse(R"({"metadata": {"name": "no-seats"}, "spec": {"type": "Limited", "limited": {
                       "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
                       "limitResponse": {"type": "Reject"}}}})"));
  INFO(level.status().ToString());
  REQUIRE(level.ok());
  const auto flow =
      admin.Create(std::string(kFlow) + "flowschemas", Json::parse(R"({"metadata": {"name": "no-seats"}, "spec": {
                       "priorityLevelConfiguration": {"name": "no-seats"}, "matchingPrecedence": 2, "rules": [{
                       "subjects": [{"kind": "User", "user": {"name": "throttled"}}],
                       "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true,
                                          "namespaces": ["*"]}]}]}})"));
  INFO(flow.status().ToString());
  REQUIRE(flow.ok());
  const std::string token = std::string(Folder()) + "/token-throttled";
  Write(token, "token-throttled");
  // The server gives even an empty share one seat: several at once are needed to be turned away.
  std::atomic<int> turned_away = 0, slept = 0, hurried = 0;
  std::atomic<bool> enough = false;
  std::vector<std::jthread> crowd;
  for (int i = 0; i < 8; ++i) {
    crowd.emplace_back([&] {
      ClientOptions options;
      options.attempts = 2;
      options.sleep = [&](std::chrono::milliseconds time) {
        hurried += time < 300ms ? 1 : 0;  // Retry-After, or the first wait
        ++slept;
      };
      Client client(ByToken(token), options);
      while (!enough) {
        turned_away += absl::IsResourceExhausted(client.Get("/api/v1/namespaces/default").status()) ? 1 : 0;
      }
    });
  }
  CHECK(Wait([&] { return turned_away > 0; }));
  enough = true;
  crowd.clear();
  CHECK(slept >= turned_away);
  CHECK(hurried == 0);
  CHECK(admin.Delete(std::string(kFlow) + "flowschemas/no-seats").ok());
}

TEST_CASE("a renewed token is used; a wrong one is 401; a foreign CA is no server of ours") {
  const std::string file = std::string(Folder()) + "/token-of-test";
  Write(file, "token-one\n");
  Client client(ByToken(file));
  CHECK(client.Get("/api/v1/namespaces/default").ok());
  Write(file, "wrong");
  CHECK(absl::IsUnauthenticated(client.Get("/api/v1/namespaces/default").status()));
  Write(file, "token-two");
  CHECK(client.Get("/api/v1/namespaces/default").ok());

  // The CA file rotates: away from the server's, and back.
  const std::string ca = std::string(Folder()) + "/ca-of-test.crt";
  std::filesystem::copy_file(std::string(Folder()) + "/ca.crt", ca, std::filesystem::copy_options::overwrite_existing);
  ClientConfig config = ByToken(file);
  config.ca_file = ca;
  ClientOptions once;
  once.attempts = 1;
  Client strict(config, once);
  CHECK(strict.Get("/api/v1/namespaces/default").ok());
  REQUIRE(
      std::system(("cd " + std::string(Folder()) +
                   " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=foreign "
                   "-keyout foreign.key -out foreign.crt 2>/dev/null")
                      .c_str()) == 0);
  std::filesystem::rename(std::string(Folder()) + "/foreign.crt", ca);
  const absl::Status foreign = strict.Get("/api/v1/namespaces/default").status();
  CHECK(absl::IsUnavailable(foreign));
  std::filesystem::copy_file(std::string(Folder()) + "/ca.crt", ca + ".new");
  std::filesystem::rename(ca + ".new", ca);
  CHECK(strict.Get("/api/v1/namespaces/default").ok());
}

TEST_CASE("a watch sees everything, lives through a restart of the API server, and ends at once") {
  Client client(ByCertificate());
  REQUIRE(client.Create(kMaps, ConfigMap("before")).ok());
  Mirror mirror;
  ListOptions options;
  options.label_selector = "suite=kube";
  options.metadata_only = true;
  auto watcher = std::make_unique<Watcher>(ByCertificate(), kMaps, options, mirror.Handler());
  CHECK(Wait([&] { return mirror.Has("before") && mirror.up(); }));
  REQUIRE(client.Create(kMaps, ConfigMap("during")).ok());
  CHECK(Wait([&] { return mirror.Has("during"); }));
  CHECK(client.Delete(std::string(kMaps) + "/during").ok());
  CHECK(Wait([&] { return !mirror.Has("during"); }));

  REQUIRE(std::system(SLUICE_TEST_APISERVER " restart") == 0);
  REQUIRE(Wait([&] { return client.Create(kMaps, ConfigMap("after")).ok(); }));
  CHECK(Wait([&] { return mirror.Has("after") && mirror.up(); }));
  CHECK(mirror.lists() <= 2);  // the watch goes on from its version, or lists once where that is gone
  CHECK(client.Delete(std::string(kMaps) + "/before").ok());
  CHECK(Wait([&] { return !mirror.Has("before"); }));
  const auto start = std::chrono::steady_clock::now();
  watcher.reset();
  CHECK(std::chrono::steady_clock::now() - start < 5s);
  CHECK(client.Delete(std::string(kMaps) + "/after").ok());
}

TEST_CASE("a watch that was away while its version was forgotten lists again, and misses nothing") {
  Client client(ByCertificate());
  REQUIRE(client.Create(kMaps, ConfigMap("goes")).ok());
  Link link(ByCertificate().server);
  ClientConfig config = ByCertificate();
  config.server = link.server();
  Mirror mirror;
  ListOptions options;
  options.label_selector = "suite=kube";
  const Watcher watcher(config, kMaps, options, mirror.Handler());
  CHECK(Wait([&] { return mirror.Has("goes") && mirror.up(); }));
  CHECK(mirror.lists() == 1);

  link.Cut();
  CHECK(Wait([&] { return !mirror.up(); }));
  CHECK(client.Delete(std::string(kMaps) + "/goes").ok());
  REQUIRE(client.Create(kMaps, ConfigMap("comes")).ok());
  // A new API server knows no event from before its start, and answers 410 to who asks for them.
  REQUIRE(std::system(SLUICE_TEST_APISERVER " restart") == 0);
  REQUIRE(Wait([&] { return client.Get("/api/v1/namespaces/default").ok(); }));
  link.Mend();
  CHECK(Wait([&] { return mirror.up() && mirror.Has("comes"); }));
  CHECK(mirror.lists() == 2);
  CHECK(!mirror.Has("goes"));
  // And it follows again.
  CHECK(client.Delete(std::string(kMaps) + "/comes").ok());
  CHECK(Wait([&] { return !mirror.Has("comes"); }));
}

TEST_CASE("an API server that is away at the start is waited for") {
  Link link(ByCertificate().server);
  link.Cut();
  ClientConfig config = ByCertificate();
  config.server = link.server();
  Client client(config, {.attempts = 1});
  CHECK(absl::IsUnavailable(client.Get("/api/v1/namespaces/default").status()));
  Mirror mirror;
  const Watcher watcher(config, "/api/v1/namespaces", {}, mirror.Handler());
  CHECK(Wait([&] { return mirror.told() > 1; }));
  CHECK(!mirror.up());
  link.Mend();
  CHECK(Wait([&] { return mirror.up() && mirror.Has("default"); }));
  CHECK(client.Get("/api/v1/namespaces/default").ok());
}
