// The contract of kube/ against a real API server: objects, the Lease, errors, credentials. apiserver.py runs it.
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "kube/lease.h"
#include "kube_fixture.h"

namespace {

using namespace sluice::kube;        // NOLINT(google-build-using-namespace): the library under test
using namespace sluice::kube::test;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

}  // namespace

TEST_CASE("objects are created, read, updated, patched and deleted, and each failure has its code") {
  Client client(ByCertificate());
  CHECK(absl::IsNotFound(client.Get(std::string(kConfigMaps) + "/none").status()));
  auto made = client.Create(kConfigMaps, ConfigMap("one"));
  REQUIRE(made.ok());
  CHECK(absl::IsAlreadyExists(client.Create(kConfigMaps, ConfigMap("one")).status()));
  CHECK(absl::IsInvalidArgument(client.Create(kConfigMaps, ConfigMap("Not A Name")).status()));
  const std::string path = std::string(kConfigMaps) + "/one";

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

TEST_CASE("a Lease has one holder; the next one waits for its duration or its release") {
  Client a(ByCertificate()), b(ByCertificate());
  const auto options = [](const char* identity) {
    return LeaseOptions{"default", "leader", identity, std::chrono::seconds(15)};
  };
  Lease first(a, options("first")), second(b, options("second"));
  using Time = Lease::Time;
  const Time start{1000s};  // the Lease uses the time of its caller
  REQUIRE(first.Tick(start).ok());
  REQUIRE(second.Tick(start).ok());
  CHECK(first.Held(start));
  CHECK(!second.Held(start));
  // A renewed Lease stays. Without renewal it ends before the other replica may take it.
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

  // Of several replicas at once, exactly one takes a free Lease.
  std::atomic<int> held = 0;
  std::vector<std::jthread> replicas;
  for (int i = 0; i < 6; ++i) {
    replicas.emplace_back([&, i] {
      Client own(ByCertificate());
      Lease mine(own, {"default", "contended", "replica-" + std::to_string(i), std::chrono::seconds(15)});
      (void)mine.Tick(start);
      held += mine.Held(start) ? 1 : 0;
    });
  }
  replicas.clear();
  CHECK(held == 1);
  CHECK(a.Delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/contended").ok());
}

TEST_CASE("Modify keeps the changes of all concurrent writers") {
  Client client(ByCertificate());
  REQUIRE(client.Create(kConfigMaps, ConfigMap("shared")).ok());
  const std::string path = std::string(kConfigMaps) + "/shared";
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

TEST_CASE("lists work in pages, with selectors, and as metadata alone") {
  Client client(ByCertificate());
  for (int i = 0; i < 7; ++i) {
    Json map = ConfigMap("page-" + std::to_string(i));
    map["metadata"]["labels"]["pages"] = "yes";
    map["data"] = {{"big", std::string(1000, 'x')}};
    REQUIRE(client.Create(kConfigMaps, map).ok());
  }
  ListOptions options;
  options.label_selector = "pages=yes";
  options.page = 3;
  options.metadata_only = true;
  const auto list = client.GetList(kConfigMaps, options);
  REQUIRE(list.ok());
  CHECK(list->items.size() == 7);
  CHECK(!list->resource_version.empty());
  CHECK(!list->items[0].contains("data"));
  options.field_selector = "metadata.name=page-4";
  CHECK(client.GetList(kConfigMaps, options)->items.size() == 1);
  for (int i = 0; i < 7; ++i) CHECK(client.Delete(std::string(kConfigMaps) + "/page-" + std::to_string(i)).ok());
}

TEST_CASE("a compacted version is answered with 410") {
  Client client(ByCertificate());
  REQUIRE(client.Create(kConfigMaps, ConfigMap("old")).ok());
  CHECK(client.Delete(std::string(kConfigMaps) + "/old").ok());
  const std::string path = std::string(kConfigMaps) + "?resourceVersion=2&resourceVersionMatch=Exact&limit=1";
  CHECK(Wait([&] { return absl::IsOutOfRange(client.Get(path).status()); }));
}

TEST_CASE("a throttled request gets 429, and the client retries when the server allows") {
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
  const std::string token = Folder() + "/token-throttled";
  Write(token, "token-throttled");
  // The server gives even an empty share one seat, so only concurrent requests are throttled.
  std::atomic<int> throttled = 0, slept = 0, too_early = 0;
  std::atomic<bool> enough = false;
  std::vector<std::jthread> replicas;
  for (int i = 0; i < 8; ++i) {
    replicas.emplace_back([&] {
      ClientOptions options;
      options.attempts = 2;
      options.sleep = [&](std::chrono::milliseconds time) {
        too_early += time < 300ms ? 1 : 0;  // Retry-After, or the first wait
        ++slept;
      };
      Client client(ByToken(token), options);
      while (!enough) {
        throttled += absl::IsResourceExhausted(client.Get("/api/v1/namespaces/default").status()) ? 1 : 0;
      }
    });
  }
  CHECK(Wait([&] { return throttled > 0; }));
  enough = true;
  replicas.clear();
  CHECK(slept >= throttled);
  CHECK(too_early == 0);
  CHECK(admin.Delete(std::string(kFlow) + "flowschemas/no-seats").ok());
}

TEST_CASE("the client follows a changed token and CA file; a wrong token gets 401, another CA is refused") {
  const std::string file = Folder() + "/token-of-test";
  Write(file, "token-one\n");
  Client client(ByToken(file));
  CHECK(client.Get("/api/v1/namespaces/default").ok());
  Write(file, "wrong");
  CHECK(absl::IsUnauthenticated(client.Get("/api/v1/namespaces/default").status()));
  Write(file, "token-two");
  CHECK(client.Get("/api/v1/namespaces/default").ok());

  // The CA file changes to another CA, and back.
  const std::string ca = Folder() + "/ca-of-test.crt";
  std::filesystem::copy_file(Folder() + "/ca.crt", ca, std::filesystem::copy_options::overwrite_existing);
  ClientConfig config = ByToken(file);
  config.ca_file = ca;
  ClientOptions once;
  once.attempts = 1;
  Client strict(config, once);
  CHECK(strict.Get("/api/v1/namespaces/default").ok());
  REQUIRE(
      std::system(("cd " + Folder() +
                   " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=foreign "
                   "-keyout foreign.key -out foreign.crt 2>/dev/null")
                      .c_str()) == 0);
  std::filesystem::rename(Folder() + "/foreign.crt", ca);
  const absl::Status foreign = strict.Get("/api/v1/namespaces/default").status();
  CHECK(absl::IsUnavailable(foreign));
  std::filesystem::copy_file(Folder() + "/ca.crt", ca + ".new");
  std::filesystem::rename(ca + ".new", ca);
  CHECK(strict.Get("/api/v1/namespaces/default").ok());
}
