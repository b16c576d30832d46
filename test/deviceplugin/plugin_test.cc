// The built program against a kubelet in the test's process: behaviour that only this kubelet can show.
// contract_test.cc holds the behaviour under any kubelet.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "deviceplugin/host/files.h"
#include "test/deviceplugin/rig.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

TEST_CASE("the plugin registers, lists device ids with their NUMA node, and reports its options") {
  Rig rig(16, "");
  const auto devices = rig.kubelet.devices();
  CHECK(devices.size() == 1600);
  CHECK(devices.at("GPU-15::99").health == "Healthy");
  CHECK(devices.at("GPU-15::0").numa == 1);
  CHECK(devices.at("GPU-4::0").numa == 0);
  // Kubelet's client accepts 4 MiB, and real cards' names are six times as long.
  CHECK(rig.kubelet.list_bytes() < (4 << 20) / 16);
  v1beta1::DevicePluginOptions options;
  REQUIRE(rig.kubelet.Options(&options).ok());
  CHECK(options.pre_start_required());
  CHECK(options.get_preferred_allocation_available());
  CHECK(rig.plugin.Terminate() == 0);
  CHECK_FALSE(fs::exists(rig.kubelet.plugin_dir() + "/sluice.sock"));
}

TEST_CASE("the plugin drops the code pages that only its start needed") {
  Rig rig(1, "");
  const long at_start = rig.plugin.ResidentFileKiB();
  CHECK(rig.kubelet.Await([&] { return rig.plugin.ResidentFileKiB() < at_start * 2 / 3; }));
}

TEST_CASE("the plugin registers again after restarts of either side") {
  Rig rig(1, "");
  SECTION("kubelet restarts: folder emptied, new socket") {
    rig.kubelet.Stop();
    rig.kubelet.Start();
  }
  SECTION("kubelet crashes: its old socket stays for a while") {
    rig.kubelet.Crash();
    rig.kubelet.Start();
  }
  SECTION("our socket is deleted") { fs::remove(rig.kubelet.plugin_dir() + "/sluice.sock"); }
  SECTION("kubelet starts after the plugin") {
    rig.plugin.Kill();
    rig.kubelet.Stop();
    rig.plugin.Start();
    REQUIRE(rig.kubelet.Await([&] { return fs::exists(rig.kubelet.plugin_dir() + "/sluice.sock"); }));
    rig.kubelet.Start();
  }
  SECTION("the plugin is killed and started") {
    rig.plugin.Kill();
    rig.plugin.Start();
  }
  CHECK(rig.kubelet.Await([&] { return rig.kubelet.registrations() >= 2; }));
  CHECK(rig.kubelet.AwaitDevices(100));
}

// Status line and body of a GET; empty if the connection fails.
std::string Get(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string out;
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) out.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return out;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(fd >= 0);
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

TEST_CASE("health, readiness and metrics are served over HTTP") {
  Rig rig;
  const int port = FreePort();
  rig.plugin.WriteCards(PluginProcess::Cards(1) + "card GPU-1 1 0 mig\n");
  rig.plugin.Configure("metricsAddress: 127.0.0.1:" + std::to_string(port) + "\n");
  rig.plugin.Start();
  const auto get = [&](const char* path) { return Get(port, path); };
  REQUIRE(rig.kubelet.Await([&] { return get("/healthz").starts_with("HTTP/1.1 200"); }));
  CHECK(rig.kubelet.Await([&] { return get("/readyz").find("not registered with kubelet") != std::string::npos; }));
  CHECK_THAT(get("/readyz"), ContainsSubstring(" 503 "));
  rig.kubelet.Start();
  REQUIRE(rig.kubelet.AwaitDevices(100));
  CHECK(rig.kubelet.Await([&] { return get("/readyz").starts_with("HTTP/1.1 200"); }));
  REQUIRE(rig.kubelet.Admit("uid-1", "main", 30).status.ok());
  REQUIRE_FALSE(rig.kubelet.AllocateIds({"GPU-7::0"}).ok());
  const std::string metrics = get("/metrics");
  for (const char* line :
       {"sluice_plugin_registrations_total{result=\"ok\"} 1", "sluice_plugin_refusals_total{reason=\"unknown\"} 1",
        "sluice_plugin_calls_total{method=\"Allocate\",result=\"ok\"} 1",
        "sluice_plugin_call_seconds_bucket{method=\"Allocate\"", "sluice_plugin_watch_streams 1",
        "gpu=\"GPU-0\",reason=\"\",state=\"healthy\"} 100",
        "gpu=\"GPU-1\",reason=\"mig\",state=\"not-offered\"} 100"}) {
    CHECK_THAT(metrics, ContainsSubstring(line));
  }
}

TEST_CASE("the flag --check-config accepts valid settings and rejects invalid ones") {
  Rig rig;
  const auto check = [&](const std::string& yaml) {
    rig.plugin.Configure(yaml);
    return rig.plugin.CheckConfig();
  };
  CHECK(check("extender: true\n") == 0);
  CHECK(check("extender: perhaps\n") == 2);
  CHECK_THAT(rig.plugin.Log(), ContainsSubstring("extender: 'perhaps' is not accepted; accepted: true, false"));
}

TEST_CASE("a second instance refuses to run") {
  Rig rig(1, "");
  PluginProcess second(rig.dir.path());
  second.Start();
  CHECK(second.Wait() == 1);
  CHECK_THAT(rig.plugin.Log(), ContainsSubstring("another sluice-device-plugin serves"));
  CHECK(rig.plugin.Running());
}

TEST_CASE("cards that appear later are offered; excluded and exclusive ones are not") {
  Rig rig;
  rig.kubelet.Start();
  rig.plugin.Start();
  REQUIRE(rig.kubelet.Await([&] { return rig.kubelet.registrations() == 1; }));
  CHECK(rig.kubelet.devices().empty());
  rig.plugin.WriteCards(PluginProcess::Cards(1));
  CHECK(rig.kubelet.AwaitDevices(100));
  rig.plugin.WriteCards(PluginProcess::Cards(3));
  CHECK(rig.kubelet.AwaitDevices(300));
  rig.plugin.Configure("exclude: [GPU-1]\n");
  CHECK(rig.kubelet.AwaitDevices(200));
  rig.plugin.WriteCards(PluginProcess::Cards(2) + "card GPU-2 2 0 exclusive\n");
  CHECK(rig.kubelet.AwaitDevices(100));
  CHECK(rig.kubelet.Await([&] { return rig.plugin.Log().find("-c DEFAULT") != std::string::npos; }));
  // An invalid file changes nothing.
  rig.plugin.Configure("exlude: [GPU-0]\n");
  CHECK(rig.kubelet.Await([&] { return rig.plugin.Log().find("exlude: this key is unknown") != std::string::npos; }));
  CHECK(rig.kubelet.AwaitDevices(100));
}

TEST_CASE("unhealthy cards are reported and recover") {
  // The long recovery time keeps the card unhealthy until this test has seen it.
  Rig rig(2, "recoverSeconds: 3600\n");
  SECTION("a fatal XID") {
    rig.plugin.WriteCards(PluginProcess::Cards(2) + "event 1 GPU-1 79\n");
    CHECK(rig.kubelet.AwaitDevices(100, 100));
    CHECK(rig.kubelet.Await(
        [&] { return ReadFile(rig.plugin.Path("run/plugin.json"))->find("XID 79") != std::string::npos; }));
  }
  SECTION("an application's XID does nothing") {
    rig.plugin.WriteCards(PluginProcess::Cards(2) + "event 1 GPU-1 31\nevent 2 GPU-0 79\n");
    CHECK(rig.kubelet.AwaitDevices(100, 100));
    CHECK(rig.kubelet.devices().at("GPU-1::0").health == "Healthy");
  }
  SECTION("a lost card") {
    rig.plugin.WriteCards("card GPU-0 0 0\ncard GPU-1 1 1 lost\n");
    CHECK(rig.kubelet.AwaitDevices(100, 100));
  }
  rig.plugin.Configure("recoverSeconds: 1\n");
  rig.plugin.WriteCards(PluginProcess::Cards(2));
  CHECK(rig.kubelet.AwaitDevices(200));
}

TEST_CASE("while the driver hangs its cards are unhealthy and the service answers") {
  Rig rig(2, "nvmlTimeoutMs: 500\n");
  rig.plugin.WriteCards(PluginProcess::Cards(2) + "hang\n");
  CHECK(rig.kubelet.AwaitDevices(0, 200));
  CHECK_THAT(Text(rig.kubelet.AllocateIds({"GPU-0::1"})), ContainsSubstring("NVML hangs"));
  rig.plugin.WriteCards(PluginProcess::Cards(2));
  CHECK(rig.kubelet.AwaitDevices(200));
}

TEST_CASE("every start of a container checks hook library, directory and agent") {
  Rig rig(1, "preStartWaitMs: 300\n");
  const Admitted pod = rig.kubelet.Admit("uid-1", "main", 30);
  REQUIRE(pod.status.ok());
  CHECK_THAT(Text(rig.kubelet.PreStart(pod.ids)), ContainsSubstring("sluice-agent runs on this node"));
  {
    FakeAgent agent(pod.RunDir());
    CHECK(Text(rig.kubelet.PreStart(pod.ids)) == "ok");
    // Each part is deleted before a restart. The plugin installs its own library version again by itself, so only
    // another version can be missing for good.
    const std::string lib = pod.response.mounts(0).host_path();
    fs::rename(pod.RunDir() + "/allocation.json", rig.dir / "away");
    CHECK_THAT(Text(rig.kubelet.PreStart(pod.ids)), ContainsSubstring("allocation.json is missing"));
    fs::rename(rig.dir / "away", pod.RunDir() + "/allocation.json");
    CHECK(Text(rig.kubelet.PreStart(pod.ids)) == "ok");
    // The plugin checks the library in every pass, so it returns at once.
    fs::rename(lib, rig.dir / "old-lib");
    CHECK(rig.kubelet.Await([&] { return rig.kubelet.PreStart(pod.ids).ok(); }));
    CHECK(IsFile(lib + "/libsluice.so"));
  }
  CHECK_THAT(Text(rig.kubelet.PreStart(pod.ids)), ContainsSubstring("does not answer"));
  fs::remove_all(pod.RunDir());
  CHECK_THAT(Text(rig.kubelet.PreStart(pod.ids)), ContainsSubstring("delete the pod"));
  CHECK_THAT(Text(rig.kubelet.PreStart({"GPU-0::99"})), ContainsSubstring("would run without limits"));
}

TEST_CASE("PreStartContainer waits for the agent") {
  Rig rig(1, "preStartWaitMs: 20000\n");
  const Admitted pod = rig.kubelet.Admit("uid-1", "main", 30);
  REQUIRE(pod.status.ok());
  grpc::Status status(grpc::StatusCode::UNKNOWN, "not called");
  std::thread start([&] { status = rig.kubelet.PreStart(pod.ids); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  FakeAgent agent(pod.RunDir());
  start.join();
  CHECK(Text(status) == "ok");
}

TEST_CASE("old responses stay valid after an upgrade of the plugin") {
  Rig rig(1, "preStartWaitMs: 300\ncollectSeconds: 1\ncollectGraceSeconds: 0\n");
  const Admitted pod = rig.kubelet.Admit("uid-1", "main", 30);
  REQUIRE(pod.status.ok());
  const std::string old_lib = pod.response.mounts(0).host_path();
  rig.plugin.Kill();
  std::ofstream(rig.plugin.Path("src/libsluice_engine.so")) << "engine of the next version";
  rig.StartPlugin(100);
  FakeAgent agent(pod.RunDir());
  CHECK(Text(rig.kubelet.PreStart(pod.ids)) == "ok");
  const Admitted next = rig.kubelet.Admit("uid-2", "main", 30);
  REQUIRE(next.status.ok());
  CHECK(next.response.mounts(0).host_path() != old_lib);
  CHECK(IsFile(old_lib + "/libsluice.so"));
  // Kubelet removes the first pod's entry at the next admission. Then nothing refers to the old version.
  rig.kubelet.Delete("uid-1");
  REQUIRE(rig.kubelet.Admit("uid-3", "main", 5).status.ok());
  CHECK(rig.kubelet.Await([&] { return !fs::exists(old_lib); }));
  CHECK(rig.kubelet.Await([&] { return !fs::exists(pod.RunDir()); }));
  CHECK(IsDir(next.RunDir()));
  // A library version of running containers that was deleted by hand: refused.
  FakeAgent other(next.RunDir());
  rig.plugin.Kill();
  fs::rename(next.response.mounts(0).host_path(), rig.dir / "away");
  std::ofstream(rig.plugin.Path("src/libsluice_engine.so")) << "a third version";
  rig.StartPlugin(100);
  CHECK_THAT(Text(rig.kubelet.PreStart(next.ids)), ContainsSubstring("the hook library is missing on the host"));
}

TEST_CASE("directories of ended pods are removed; a broken checkpoint removes none") {
  Rig rig(1, "collectSeconds: 1\ncollectGraceSeconds: 0\n");
  std::vector<std::string> pods;
  for (int i = 0; i < 10; ++i) {
    pods.push_back("uid-" + std::to_string(i));
    REQUIRE(rig.kubelet.Admit(pods.back(), "main", 5).status.ok());
  }
  const auto checkpoint = *ReadFile(rig.kubelet.checkpoint());
  std::ofstream(rig.kubelet.checkpoint()) << checkpoint.substr(0, checkpoint.size() / 2);
  for (const auto& pod : pods) rig.kubelet.Delete(pod);
  REQUIRE(rig.kubelet.Await([&] { return rig.plugin.Log().find("nothing is deleted") != std::string::npos; }));
  CHECK(rig.Allocations().size() == 10);
  std::ofstream(rig.kubelet.checkpoint()) << checkpoint;
  CHECK(rig.kubelet.Await([&] { return rig.Allocations().empty(); }));
}

TEST_CASE("invalid requests are refused with the reason and leave no directory") {
  Rig rig(2, "");
  auto refused = [&](const std::vector<std::string>& ids) { return Text(rig.kubelet.AllocateIds(ids)); };
  CHECK_THAT(refused({"GPU-9::1"}), ContainsSubstring("GPU-9 is not on this node"));
  CHECK_THAT(refused({"GPU-0::1", "GPU-0::1"}), ContainsSubstring("named twice"));
  CHECK_THAT(refused({"nvidia.com/gpu=0"}), ContainsSubstring("accepted: <GPU uuid>::<unit"));
  CHECK_THAT(refused({""}), ContainsSubstring("accepted: "));
  CHECK_THAT(refused(Join({Ids("GPU-0", 0, 30), Ids("GPU-1", 0, 20)})),
             ContainsSubstring("no GPU of this node has 50 percent free"));
  std::vector<std::string> thousands;
  for (int i = 0; i < 30'000; ++i) thousands.push_back("GPU-0::" + std::to_string(i));
  CHECK_THAT(refused(thousands), ContainsSubstring("30000 devices were named"));
  CHECK(rig.Allocations().empty());
  CHECK(rig.plugin.Running());
}

TEST_CASE("an init container's units pass to the next container, and both directories must serve") {
  Rig rig(1, "preStartWaitMs: 300\n");
  const Admitted init = rig.kubelet.Admit("uid-1", "init", 20);
  REQUIRE(init.status.ok());
  const Admitted main = rig.kubelet.Admit("uid-1", "main", 20, {init.ids.begin(), init.ids.end()});
  REQUIRE(Text(main.status) == "ok");
  CHECK(main.ids == init.ids);
  CHECK(main.RunDir() != init.RunDir());
  FakeAgent one(init.RunDir());
  CHECK_THAT(Text(rig.kubelet.PreStart(init.ids)), ContainsSubstring(main.RunDir()));
  FakeAgent two(main.RunDir());
  CHECK(Text(rig.kubelet.PreStart(init.ids)) == "ok");
  // More units than the init container had: from the same card.
  const Admitted wide = rig.kubelet.Admit("uid-1", "wide", 60, {init.ids.begin(), init.ids.end()});
  CHECK(Text(wide.status) == "ok");
}

}  // namespace
}  // namespace sluice::deviceplugin
