#include "scheduler/extender/extender_server.h"

#include <httplib.h>

#include <catch2/catch_test_macros.hpp>

#include "fake_cluster.h"

namespace sluice::scheduler {
namespace {

TEST_CASE("one address serves the scheduler's calls, the other only GET") {
  const auto policies = *PolicyRefresher::Make("best-fit");
  ClusterState cluster(*policies);
  FakeBinder binder;
  Extender extender(cluster, binder);
  const auto server = ExtenderServer::Start({"127.0.0.1", 0}, ListenAddress{"127.0.0.1", 0}, extender, cluster);
  REQUIRE(server.ok());
  httplib::Client calls("127.0.0.1", (*server)->port()), metrics("127.0.0.1", (*server)->metrics_port());
  CHECK(metrics.Get("/healthz")->status == 200);
  CHECK(metrics.Get("/readyz")->status == 503);
  ReplaceNodes(cluster, {MakeNode("a", {100})});
  ReplacePods(cluster, {});
  for (httplib::Client* client : {&calls, &metrics}) {
    CHECK(client->Get("/readyz")->status == 200);
    CHECK(client->Get("/metrics")->body.find("sluice_extender_nodes 1\n") != std::string::npos);
  }
  const std::string args = Json{{"Pod", MakePod("p", 50)}, {"NodeNames", {"a"}}}.dump();
  CHECK(Json::parse(calls.Post("/filter", args, "application/json")->body)["NodeNames"] == Json{"a"});
  for (const char* path : {"/filter", "/prioritize", "/bind"}) {
    CHECK(metrics.Post(path, args, "application/json")->status == 404);
  }
  CHECK((*server)->volcano_port() == 0);
  // A second extender cannot share the scheduler's port.
  CHECK_FALSE(
      ExtenderServer::Start({"127.0.0.1", static_cast<uint16_t>((*server)->port())}, std::nullopt, extender, cluster)
          .ok());
}

TEST_CASE("Volcano's address answers Volcano's calls alone, and the scheduler's address none of them") {
  const auto policies = *PolicyRefresher::Make("best-fit");
  ClusterState cluster(*policies);
  FakeBinder binder;
  Extender extender(cluster, binder);
  const ListenAddress any{"127.0.0.1", 0};
  const auto server = ExtenderServer::Start(any, std::nullopt, extender, cluster, any);
  REQUIRE(server.ok());
  ReplaceNodes(cluster, {MakeNode("a", {50})});
  ReplacePods(cluster, {MakePod("p", 60)});
  httplib::Client calls("127.0.0.1", (*server)->port()), volcano("127.0.0.1", (*server)->volcano_port());
  const Json task = {{"UID", "uid-p"}, {"Namespace", "default"}, {"Name", "p"}, {"NodeName", "a"}, {"Status", 2}};
  const std::string body = Json{{"task", task}, {"node", {{"Name", "a"}}}}.dump();
  CHECK(Json::parse(volcano.Post("/predicate", body, "application/json")->body)["code"] == 2);
  for (const char* path : {"/allocate", "/deallocate", "/session-close"}) {
    CHECK(volcano.Post(path, body, "application/json")->status == 200);
  }
  for (const char* path : {"/predicate", "/allocate", "/deallocate", "/session-close"}) {
    CHECK(calls.Post(path, body, "application/json")->status == 404);
  }
  for (const char* path : {"/filter", "/prioritize", "/prioritize-any", "/bind"}) {
    CHECK(volcano.Post(path, body, "application/json")->status == 404);
  }
}

}  // namespace
}  // namespace sluice::scheduler
