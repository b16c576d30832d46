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
  // A second extender cannot share the scheduler's port.
  CHECK_FALSE(
      ExtenderServer::Start({"127.0.0.1", static_cast<uint16_t>((*server)->port())}, std::nullopt, extender, cluster)
          .ok());
}

}  // namespace
}  // namespace sluice::scheduler
