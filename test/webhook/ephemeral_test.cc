// Containers that are added to a running pod: the API server asks about the subresource ephemeralcontainers.
#include <catch2/catch_test_macros.hpp>

#include "golden.h"
#include "sluice/names.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/review.h"

namespace sluice::webhook::test {
namespace {

Json Parse(const std::string& yaml) {
  std::string error;
  const auto documents = ReadManifests(yaml, error);
  INFO(error);
  REQUIRE(documents);
  return documents->at(0);
}

const Json& Running() {
  static const Json pod = Parse(R"(
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {sluice.dev/gpu-fraction: "0.5", sluice.dev/injected: '{"version":"1"}'}}
spec:
  containers: [{name: main, image: a}]
  volumes: [{name: dev, hostPath: {path: /dev}}, {name: data, hostPath: {path: /srv}}]
)");
  return pod;
}

Json Debug(const std::string& container) {
  Json pod = Running();
  pod["spec"]["ephemeralContainers"].push_back(Parse("{name: debugger, image: b, " + container + "}"));
  return pod;
}

Answer Ask(const Json& pod, const Json& old, const Config& config = {}, const char* name_space = "team-a") {
  const Json request = {{"uid", "u"},
                        {"operation", "UPDATE"},
                        {"namespace", name_space},
                        {"subResource", "ephemeralcontainers"},
                        {"resource", {{"group", ""}, {"version", "v1"}, {"resource", "pods"}}},
                        {"object", pod},
                        {"oldObject", old}};
  const Json body = {{"apiVersion", "admission.k8s.io/v1"}, {"kind", "AdmissionReview"}, {"request", request}};
  return Review(Path::kValidate, body.dump(), config, {});
}

Json Response(const Answer& answer) { return Json::parse(answer.body)["response"]; }

}  // namespace

TEST_CASE("an ephemeral container that reaches past the share is denied") {
  for (const char* container :
       {"securityContext: {privileged: true}", "securityContext: {capabilities: {add: [sys_admin]}}",
        "securityContext: {procMount: Unmasked}", "volumeMounts: [{name: dev, mountPath: /host}]",
        "volumeMounts: [{name: data, mountPath: /var/run/nvidia-container-devices/all}]",
        "env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]"}) {
    INFO(container);
    const Json pod = Debug(container);
    const Answer answer = Ask(pod, Running());
    CHECK(answer.outcome == Answer::Outcome::kDenied);
    const std::string message = Response(answer)["status"]["message"];
    CHECK(message.find("spec.ephemeralContainers[0]") == 0);
    CHECK(message.find("accepted: ") != std::string::npos);
    Config warns;
    warns.privileged = Reaction::kWarn;
    const Answer warned = Ask(pod, Running(), warns);
    CHECK(warned.outcome == Answer::Outcome::kAllowed);
    CHECK(Response(warned)["warnings"].size() == 1);
    warns.privileged = Reaction::kAllow;
    CHECK_FALSE(Response(Ask(pod, Running(), warns)).contains("warnings"));
    CHECK(Ask(pod, Running(), {}, "kube-system").outcome == Answer::Outcome::kAllowed);
  }
}

TEST_CASE("an ephemeral container within the share, of another pod, or there before is allowed") {
  for (const char* container : {"stdin: true", "volumeMounts: [{name: data, mountPath: /data}]",
                                "env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]"}) {
    INFO(container);
    CHECK(Ask(Debug(container), Running()).outcome == Answer::Outcome::kAllowed);
  }
  const Json privileged = Debug("securityContext: {privileged: true}");
  CHECK(Ask(privileged, privileged).outcome == Answer::Outcome::kAllowed);
  Json two = privileged;
  two["spec"]["ephemeralContainers"].push_back(Parse("{name: second, image: b, securityContext: {privileged: true}}"));
  CHECK(Ask(two, privileged).outcome == Answer::Outcome::kDenied);
  Json other = privileged, plain = Running();
  for (Json* pod : {&other, &plain}) (*pod)["metadata"].erase("annotations");
  CHECK(Ask(other, plain).outcome == Answer::Outcome::kAllowed);
  // kubectl debug's usual profile adds SYS_PTRACE.
  const Answer traced = Ask(Debug("securityContext: {capabilities: {add: [SYS_PTRACE]}}"), Running());
  CHECK(traced.outcome == Answer::Outcome::kAllowed);
  CHECK(Response(traced)["warnings"].size() == 1);
}

}  // namespace sluice::webhook::test
