// The server's answers: reviews, invalid requests, changed certificates, readiness and shutdown.
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "server_fixture.h"

namespace {

using namespace sluice;                 // NOLINT(google-build-using-namespace)
using namespace sluice::webhook;        // NOLINT(google-build-using-namespace): the library under test
using namespace sluice::webhook::test;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;
using std::chrono::system_clock;

}  // namespace

TEST_CASE("a review is answered with its uid, and any other body gets status 400 with a reason") {
  const RunningService r;
  const auto client = r.Client();
  const auto good = client->Post("/mutate", ReviewBody("u-42"), "application/json");
  REQUIRE(good);
  const Json answer = Json::parse(good->body);
  CHECK(answer["response"]["uid"] == "u-42");
  CHECK(answer["response"]["allowed"] == true);
  CHECK(answer["response"]["patchType"] == "JSONPatch");
  CHECK(Json::parse(client->Post("/mutate", ReviewBody("u", "7.5"), "application/json")->body)["response"]["allowed"] ==
        false);

  std::string deep(200, '[');
  for (const auto& [name, body] : std::vector<std::pair<std::string, std::string>>{
           {"empty", ""},
           {"truncated", ReviewBody("u").substr(0, 100)},
           {"not UTF-8", "{\"a\":\"\xff\"}"},
           {"duplicate key", R"({"kind":"AdmissionReview","kind":"AdmissionReview"})"},
           {"deep", deep},
           {"wrong kind", R"({"kind":"Pod","apiVersion":"v1"})"},
           {"wrong version",
            R"({"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u"}})"},
           {"no uid", R"({"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}})"},
       }) {
    INFO(name);
    const auto bad = client->Post("/mutate", body, "application/json");
    REQUIRE(bad);
    CHECK(bad->status == 400);
    CHECK(!bad->body.empty());
  }
  Json other = Json::parse(ReviewBody("u"));
  other["request"]["resource"]["resource"] = "configmaps";
  const Json allowed = Json::parse(client->Post("/mutate", other.dump(), "application/json")->body);
  CHECK(allowed["response"]["allowed"] == true);
  CHECK(!allowed["response"].contains("patch"));
  CHECK(client->Get("/nothing")->status == 404);
}

// The API server takes status 400 or 413 for an absent webhook, and lets the pod pass.
TEST_CASE("a pod that the webhook cannot read is denied, and a workload passes with a warning") {
  const RunningService r;
  const auto client = r.Client();
  const auto review = [](const std::string& group, const std::string& resource, const std::string& operation,
                         const std::string& object) {
    // In the API server's order: the objects come last.
    return R"({"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-7","resource":{"group":")" +
           group + R"(","version":"v1","resource":")" + resource + R"("},"namespace":"team-a","operation":")" +
           operation + R"(","object":)" + object + R"(,"oldObject":)" + object + "}}";
  };
  const auto pod = [](const std::string& more) {
    return R"({"metadata":{"annotations":{"sluice.dev/gpu-fraction":"0.5"},"managedFields":[{"fieldsV1":)" + more +
           R"(}]},"spec":{"containers":[{"name":"a","image":"x"}]}})";
  };
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = R"({"f:a":)" + deep + "}";
  // Go writes one '<' with six bytes: 3 MiB are half a MiB of them.
  const std::string large = R"({"f:a":")" + std::string(3 << 20, 'x') + "\"}";
  std::string many = "{}";  // they fit into the bytes, and would take a hundred times as much memory
  for (int i = 0; i < 100000; ++i) many += ",{}";
  for (const auto& [what, more] : {std::pair{"nested deeper than", deep}, std::pair{"too large", large},
                                   std::pair{"more than 100000 values", R"({"f:a":[)" + many + "]}"},
                                   std::pair{"twice", std::string(R"({"a":1,"a":1})")}}) {
    INFO(what);
    for (const auto& [path, operation] : {std::pair{"/mutate", "CREATE"}, std::pair{"/validate", "UPDATE"}}) {
      const auto answer = client->Post(path, review("", "pods", operation, pod(more)), "application/json");
      REQUIRE(answer);
      REQUIRE(answer->status == 200);
      const Json response = Json::parse(answer->body)["response"];
      CHECK(response["uid"] == "u-7");
      CHECK(response["allowed"] == false);
      CHECK(response["status"]["message"].get<std::string>().find(what) != std::string::npos);
    }
    const auto other =
        client->Post("/validate", review("ray.io", "rayclusters", "CREATE", pod(more)), "application/json");
    REQUIRE(other);
    const Json response = Json::parse(other->body)["response"];
    CHECK(response["allowed"] == true);
    CHECK(response["warnings"][0].get<std::string>().find("not checked") != std::string::npos);
  }
  // The connection goes on after a body that was cut.
  CHECK(Post(*client, ReviewBody("u")) == 200);
}

TEST_CASE("a request behind a body that is cut is answered") {
  const RunningService r;
  const std::string body(4 << 20, ' ');
  const std::string answers = Exchange(
      r.service.port(), "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                            "\r\n\r\n" + body + "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  CHECK(answers.starts_with("HTTP/1.1 400"));
  CHECK(answers.find("HTTP/1.1 200") != std::string::npos);
}

TEST_CASE("a large, compressed, chunked or ambiguous request is refused before its body is read") {
  const RunningService r;
  const uint16_t port = r.service.port();
  const std::string head = "POST /mutate HTTP/1.1\r\nHost: x\r\n";
  CHECK(Exchange(port, head + "Content-Length: 67108865\r\n\r\n").starts_with("HTTP/1.1 413"));
  CHECK(Exchange(port, head + "Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\nhello").starts_with("HTTP/1.1 415"));
  CHECK(Exchange(port, head + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n").starts_with("HTTP/1.1 411"));
  CHECK(Exchange(port, head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(Exchange(port, head + "Content-Length: -1\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(Exchange(port, head + "Content-Length : 5\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(Exchange(port, "GET / HTTP/9\r\n\r\n").starts_with("HTTP/1.1 400"));
  CHECK(Exchange(port, head + "X: " + std::string(20000, 'a')).starts_with("HTTP/1.1 431"));
  const std::string body = ReviewBody("u");
  const std::string expecting = Exchange(port, head + "Connection: close\r\nExpect: 100-continue\r\nContent-Length: " +
                                                   std::to_string(body.size()) + "\r\n\r\n" + body);
  CHECK(expecting.find("HTTP/1.1 200") != std::string::npos);
  // Two requests in one write are two answers.
  const std::string one = "GET /healthz HTTP/1.1\r\nHost: x\r\n";
  const std::string both = Exchange(port, one + "\r\n" + one + "Connection: close\r\n\r\n");
  CHECK(both.find("HTTP/1.1 200", 5) != std::string::npos);
  CHECK(Post(*r.Client(), std::string(3 << 20, ' ')) == 400);  // the server reads exactly 3 MiB, which is no JSON
}

TEST_CASE("no request fails while the certificate changes under load") {
  RunningService r;
  std::atomic<bool> stop = false;
  std::atomic<int> sent = 0, failed = 0;
  std::vector<std::jthread> load;
  for (int t = 0; t < 2; ++t) {
    load.emplace_back([&, t] {
      auto client = r.Client();
      for (int i = 0; !stop; ++i) {
        if (t == 1 && i % 3 == 0) client = r.Client();  // one thread keeps its connection, one opens new ones
        failed += Post(*client, ReviewBody("u")) == 200 ? 0 : 1;
        ++sent;
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    r.Use(MakeCertificate());
    std::this_thread::sleep_for(20ms);
  }
  while (sent < 50) std::this_thread::sleep_for(10ms);
  stop = true;
  load.clear();
  CHECK(failed == 0);
}

TEST_CASE("readyz fails without a valid certificate and during shutdown; the request in flight is answered") {
  Service service({}, Loopback(), Loopback(), [](const std::string&) {});
  REQUIRE(service.Start().empty());
  httplib::Client plain("127.0.0.1", service.metrics_port());
  CHECK(plain.Get("/readyz")->status == 503);
  CHECK(plain.Get("/healthz")->status == 200);
  std::string error;
  const SecretData old = MakeCertificate(system_clock::now() - std::chrono::hours(24 * 200));
  service.certificates().Set(KeyPair::Parse(old.at("tls.crt"), old.at("tls.key"), error));
  CHECK(plain.Get("/readyz")->status == 503);
  const SecretData fresh = MakeCertificate();
  service.certificates().Set(KeyPair::Parse(fresh.at("tls.crt"), fresh.at("tls.key"), error));
  CHECK(plain.Get("/readyz")->status == 200);

  const std::string body = ReviewBody("last");
  RawClient raw(service.port());
  REQUIRE(raw.Handshake());
  raw.Send("POST /mutate HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n");
  CHECK(raw.Receive().starts_with("HTTP/1.1 100"));  // the server has the header
  raw.Send(body.substr(0, 50));
  service.FailReadiness();
  CHECK(plain.Get("/readyz")->body == "shutting down\n");
  std::jthread drain([&] { service.Drain(10s); });
  std::this_thread::sleep_for(100ms);
  raw.Send(body.substr(50));
  CHECK(raw.ReceiveUntilEnd().starts_with("HTTP/1.1 200"));
}
