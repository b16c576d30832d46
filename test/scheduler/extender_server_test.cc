#include "scheduler/extender/extender_server.h"

#include <httplib.h>

#include <catch2/catch_test_macros.hpp>

#include "fake_cluster.h"

namespace sluice::scheduler {
namespace {

TEST_CASE("calls are answered where the scheduler is, the other address only tells") {
  const auto policies = *PolicyMaker::Make("best-fit");
  ClusterState cluster(*policies);
  FakeBinder binder;
  Extender extender(cluster, binder);
  const auto server = ExtenderServer::Start({"127.0.0.1", 0}, Endpoint{"127.0.0.1", 0}, extender, cluster);
  REQUIRE(server.ok());
  httplib::Client calls("127.0.0.1", (*server)->port()), reading("127.0.0.1", (*server)->reading_port());
  CHECK(reading.Get("/healthz")->status == 200);
  CHECK(reading.Get("/readyz")->status == 503);
  cluster.ReplaceNodes({MakeNode("a", {100})});
  cluster.ReplacePods({});
  for (httplib::Client* client : {&calls, &reading}) {
    CHECK(client->Get("/readyz")->status == 200);
    CHECK(client->Get("/metrics")->body.find("sluice_extender_nodes 1\n") != std::string::npos);
  }
  const std::string args = Json{{"Pod", MakePod("p", 50)}, {"NodeNames", {"a"}}}.dump();
  CHECK(Json::parse(calls.Post("/filter", args, "application/json")->body)["NodeNames"] == Json{"a"});
  for (const char* path : {"/filter", "/prioritize", "/bind"}) {
    CHECK(reading.Post(path, args, "application/json")->status == 404);
  }
  // Nobody shares the scheduler's port by accident.
  CHECK_FALSE(ExtenderServer::Start({"127.0.0.1", (*server)->port()}, std::nullopt, extender, cluster).ok());
}

}  // namespace
}  // namespace sluice::scheduler
