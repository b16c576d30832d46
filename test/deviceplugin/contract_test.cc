// The contract with kubelet: the built program against an in-process kubelet. devicemanager/ drives the same program
// with kubelet's own device manager, cluster_test with a whole node.
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "deviceplugin/files.h"
#include "test/deviceplugin/fake_kubelet.h"
#include "test/deviceplugin/plugin_process.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

struct Rig {
  TempDir dir;
  PluginProcess plugin{dir.path()};
  FakeKubelet kubelet{dir / "kubelet"};

  Rig() = default;
  Rig(int cards, const std::string& yaml) {
    plugin.Node(PluginProcess::Cards(cards));
    plugin.Configure(yaml);
    kubelet.Start();
    plugin.Start();
    REQUIRE(kubelet.AwaitDevices(static_cast<size_t>(cards) * 100));
  }
  // The plugin's own words, for a failure.
  std::string Log() const {
    const std::string log = plugin.Log();
    return log.size() > 6000 ? log.substr(log.size() - 6000) : log;
  }
  std::vector<std::string> Allocations() const {
    auto names = ListDir(plugin.Path("alloc"));
    return names.ok() ? *names : std::vector<std::string>{};
  }
};

std::string Text(const grpc::Status& status) { return status.ok() ? "ok" : status.error_message(); }

TEST_CASE("it registers, lists true ids with their NUMA node, and says what it can") {
  Rig rig(16, "");
  const auto devices = rig.kubelet.devices();
  CHECK(devices.size() == 1600);
  CHECK(devices.at("GPU-15::99").health == "Healthy");
  CHECK(devices.at("GPU-15::0").numa == 1);
  CHECK(devices.at("GPU-4::0").numa == 0);
  v1beta1::DevicePluginOptions options;
  REQUIRE(rig.kubelet.Options(&options).ok());
  CHECK(options.pre_start_required());
  CHECK(options.get_preferred_allocation_available());
  CHECK(rig.plugin.Terminate() == 0);
  CHECK_FALSE(fs::exists(rig.kubelet.plugin_dir() + "/sluice.sock"));
}

TEST_CASE("kubelet's comings and goings are followed") {
  Rig rig(1, "");
  SECTION("restart: folder emptied, socket anew") {
    rig.kubelet.Stop();
    rig.kubelet.Start();
  }
  SECTION("crash: the dead socket stays for a while") {
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

TEST_CASE("one instance only") {
  Rig rig(1, "");
  PluginProcess second(rig.dir.path());
  second.Start();
  CHECK(second.Wait() == 1);
  CHECK_THAT(rig.plugin.Log(), ContainsSubstring("another sluice-device-plugin serves"));
  CHECK(rig.plugin.Running());
}

TEST_CASE("no GPU, then a driver, then one card more; excluded and exclusive ones are not offered") {
  Rig rig;
  rig.kubelet.Start();
  rig.plugin.Start();
  REQUIRE(rig.kubelet.Await([&] { return rig.kubelet.registrations() == 1; }));
  CHECK(rig.kubelet.devices().empty());
  rig.plugin.Node(PluginProcess::Cards(1));
  CHECK(rig.kubelet.AwaitDevices(100));
  rig.plugin.Node(PluginProcess::Cards(3));
  CHECK(rig.kubelet.AwaitDevices(300));
  rig.plugin.Configure("exclude: [GPU-1]\n");
  CHECK(rig.kubelet.AwaitDevices(200));
  rig.plugin.Node(PluginProcess::Cards(2) + "card GPU-2 2 0 exclusive\n");
  CHECK(rig.kubelet.AwaitDevices(100));
  CHECK(rig.kubelet.Await([&] { return rig.plugin.Log().find("-c DEFAULT") != std::string::npos; }));
  // A mistake in the file changes nothing.
  rig.plugin.Configure("exlude: [GPU-0]\n");
  CHECK(rig.kubelet.Await([&] { return rig.plugin.Log().find("'exlude' is no setting") != std::string::npos; }));
  CHECK(rig.kubelet.AwaitDevices(100));
}

TEST_CASE("sick cards leave and return") {
  Rig rig(2, "recoverSeconds: 1\nnvmlTimeoutMs: 200\n");
  SECTION("a fatal XID") {
    rig.plugin.Node(PluginProcess::Cards(2) + "event 1 GPU-1 79\n");
    CHECK(rig.kubelet.AwaitDevices(100, 100));
    auto state = ReadFile(rig.plugin.Path("run/plugin.json"));
    REQUIRE(state.ok());
    CHECK_THAT(*state, ContainsSubstring("XID 79"));
  }
  SECTION("an application's XID does nothing") {
    rig.plugin.Node(PluginProcess::Cards(2) + "event 1 GPU-1 31\nevent 2 GPU-0 79\n");
    CHECK(rig.kubelet.AwaitDevices(100, 100));
    CHECK(rig.kubelet.devices().at("GPU-1::0").health == "Healthy");
  }
  SECTION("a lost card") {
    rig.plugin.Node("card GPU-0 0 0\ncard GPU-1 1 1 lost\n");
    CHECK(rig.kubelet.AwaitDevices(100, 100));
  }
  SECTION("NVML hangs") {
    rig.plugin.Node(PluginProcess::Cards(2) + "hang\n");
    CHECK(rig.kubelet.AwaitDevices(0, 200));
    // The service answers meanwhile, and refuses with the reason.
    CHECK_THAT(Text(rig.kubelet.AllocateIds({"GPU-0::1"})), ContainsSubstring("NVML hangs"));
  }
  rig.plugin.Node(PluginProcess::Cards(2));
  CHECK(rig.kubelet.AwaitDevices(200));
}

TEST_CASE("a pod is served whole: one card's share, library, directory, variables") {
  Rig rig(2, "");
  const Admitted pod = rig.kubelet.Admit("uid-1", "main", 50);
  REQUIRE(Text(pod.status) == "ok");
  std::set<std::string> uuids;
  for (const auto& id : pod.ids) uuids.insert(ParseDeviceId(id)->uuid);
  CHECK(uuids.size() == 1);
  const auto& envs = pod.response.envs();
  CHECK(envs.at("LD_PRELOAD") == "/opt/sluice/lib/libsluice.so");
  CHECK(envs.at("SLUICE_GPU_FRACTION") == "0.50");
  CHECK(envs.at("NVIDIA_VISIBLE_DEVICES") == "void");
  REQUIRE(pod.response.mounts_size() == 2);
  for (const auto& mount : pod.response.mounts()) {
    CHECK(mount.read_only());
    CHECK(IsDir(mount.host_path()));
  }
  REQUIRE(pod.response.cdi_devices_size() == 1);
  CHECK(pod.response.cdi_devices(0).name() == "sluice.dev/gpu=" + *uuids.begin());
  CHECK(fs::exists(rig.plugin.Path("cdi/sluice.dev-gpu_" + *uuids.begin() + ".json")));
  // The second half packs beside it; a whole card then takes the other.
  const Admitted second = rig.kubelet.Admit("uid-2", "main", 50);
  CHECK(ParseDeviceId(second.ids[0])->uuid == *uuids.begin());
  CHECK(Text(rig.kubelet.Admit("uid-3", "main", 100).status) == "ok");
  CHECK(rig.Allocations().size() == 3);
}

TEST_CASE("a container starts only when all is there, at each start") {
  Rig rig(1, "preStartWaitMs: 300\n");
  const Admitted pod = rig.kubelet.Admit("uid-1", "main", 30);
  REQUIRE(pod.status.ok());
  CHECK_THAT(Text(rig.kubelet.PreStart(pod.ids)), ContainsSubstring("sluice-agent runs on this node"));
  {
    FakeAgent agent(pod.RunDir());
    CHECK(Text(rig.kubelet.PreStart(pod.ids)) == "ok");
    // Each deleted before a restart. The plugin lays its own library anew by itself: what is missing for good is
    // another version.
    const std::string lib = pod.response.mounts(0).host_path();
    fs::rename(pod.RunDir() + "/allocation.json", rig.dir / "away");
    CHECK_THAT(Text(rig.kubelet.PreStart(pod.ids)), ContainsSubstring("allocation.json is missing"));
    fs::rename(rig.dir / "away", pod.RunDir() + "/allocation.json");
    CHECK(Text(rig.kubelet.PreStart(pod.ids)) == "ok");
    fs::remove_all(lib);
    CHECK(rig.kubelet.Await([&] { return rig.kubelet.PreStart(pod.ids).ok(); }));
    CHECK(IsFile(lib + "/libsluice.so"));
  }
  CHECK_THAT(Text(rig.kubelet.PreStart(pod.ids)), ContainsSubstring("nobody answers"));
  fs::remove_all(pod.RunDir());
  CHECK_THAT(Text(rig.kubelet.PreStart(pod.ids)), ContainsSubstring("delete the pod"));
  CHECK_THAT(Text(rig.kubelet.PreStart({"GPU-0::99"})), ContainsSubstring("would run without limits"));
}

TEST_CASE("PreStart waits for an agent that comes") {
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

TEST_CASE("what kubelet was given stays true over an upgrade of the plugin") {
  Rig rig(1, "preStartWaitMs: 300\ncollectSeconds: 1\ncollectGraceSeconds: 0\n");
  const Admitted pod = rig.kubelet.Admit("uid-1", "main", 30);
  REQUIRE(pod.status.ok());
  const std::string old_lib = pod.response.mounts(0).host_path();
  rig.plugin.Kill();
  std::ofstream(rig.plugin.Path("src/libsluice_engine.so")) << "engine of the next version";
  rig.plugin.Start();
  REQUIRE(rig.kubelet.AwaitDevices(100));
  FakeAgent agent(pod.RunDir());
  CHECK(Text(rig.kubelet.PreStart(pod.ids)) == "ok");
  const Admitted next = rig.kubelet.Admit("uid-2", "main", 30);
  REQUIRE(next.status.ok());
  CHECK(next.response.mounts(0).host_path() != old_lib);
  CHECK(IsFile(old_lib + "/libsluice.so"));
  // Kubelet's entry of the first pod goes with the next admission; then nothing refers to the old version.
  rig.kubelet.Delete("uid-1");
  REQUIRE(rig.kubelet.Admit("uid-3", "main", 5).status.ok());
  CHECK(rig.kubelet.Await([&] { return !fs::exists(old_lib); }));
  CHECK(rig.kubelet.Await([&] { return !fs::exists(pod.RunDir()); }));
  CHECK(IsDir(next.RunDir()));
  // A library that living containers were given, deleted by hand: refused.
  FakeAgent other(next.RunDir());
  fs::rename(next.response.mounts(0).host_path(), rig.dir / "away");
  rig.plugin.Kill();
  std::ofstream(rig.plugin.Path("src/libsluice_engine.so")) << "a third version";
  rig.plugin.Start();
  REQUIRE(rig.kubelet.AwaitDevices(100));
  CHECK_THAT(Text(rig.kubelet.PreStart(next.ids)), ContainsSubstring("the hook library is missing on the host"));
}

TEST_CASE("directories of dead pods go, also the last ones; a broken checkpoint deletes nothing") {
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

TEST_CASE("bad requests are refused with their reason, and nothing is left behind") {
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

TEST_CASE("an init container's units go to the next container without a question: both directories serve") {
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
  // More than the init container had: from the same card.
  const Admitted wide = rig.kubelet.Admit("uid-1", "wide", 60, {init.ids.begin(), init.ids.end()});
  CHECK(Text(wide.status) == "ok");
}

TEST_CASE("a card that another plugin offers is left alone, unless told otherwise") {
  Rig rig(2, "");
  rig.kubelet.OfferForeign("nvidia.com/gpu", {"GPU-1::0", "GPU-1::1"});
  CHECK(rig.kubelet.AwaitDevices(100));
  CHECK_THAT(Text(rig.kubelet.AllocateIds({"GPU-1::5"})), ContainsSubstring("coexist: allow"));
  rig.plugin.Configure("coexist: allow\n");
  CHECK(rig.kubelet.AwaitDevices(200));
}

TEST_CASE("driver access follows the setting, and auto finds NVIDIA's specs") {
  Rig rig(1, "driverAccess: auto\n");
  CHECK(rig.kubelet.Admit("uid-1", "main", 10).response.cdi_devices(0).name() == "sluice.dev/gpu=GPU-0");
  rig.plugin.Configure("driverAccess: nvidia-cdi\n");
  REQUIRE(rig.kubelet.Await([&] { return rig.plugin.Log().find("nvidia-cdi (set)") != std::string::npos; }));
  CHECK_THAT(Text(rig.kubelet.Admit("uid-2", "main", 10).status), ContainsSubstring("nvidia-ctk cdi generate"));
  fs::create_directory(rig.plugin.Path("nvidia-cdi"));
  std::ofstream(rig.plugin.Path("nvidia-cdi/nvidia.yaml"))
      << "cdiVersion: 0.5.0\ncontainerEdits: {}\ndevices:\n- containerEdits: {}\n  name: GPU-0\nkind: nvidia.com/gpu\n";
  rig.plugin.Configure("driverAccess: auto\n");
  REQUIRE(rig.kubelet.Await([&] { return rig.plugin.Log().find("nvidia-cdi (auto") != std::string::npos; }));
  CHECK(rig.kubelet.Admit("uid-3", "main", 10).response.cdi_devices(0).name() == "nvidia.com/gpu=GPU-0");
  rig.plugin.Configure("driverAccess: nvidia-runtime\n");
  REQUIRE(rig.kubelet.Await([&] { return rig.plugin.Log().find("nvidia-runtime (set)") != std::string::npos; }));
  const Admitted pod = rig.kubelet.Admit("uid-4", "main", 10);
  CHECK(pod.response.cdi_devices_size() == 0);
  CHECK(pod.response.envs().at("NVIDIA_VISIBLE_DEVICES") == "GPU-0");
}

TEST_CASE("killed at any moment, it comes back and nothing is lost or given twice") {
  Rig rig(4, "collectSeconds: 1\ncollectGraceSeconds: 0\n");
  std::mt19937 random(11);
  std::map<std::string, Admitted> living;
  for (int round = 0; round < 15; ++round) {
    std::thread killer([&, wait = random() % 40'000] {
      std::this_thread::sleep_for(std::chrono::microseconds(wait));
      rig.plugin.Kill();
    });
    for (int i = 0; i < 4; ++i) {
      const std::string pod = "uid-" + std::to_string(round) + "-" + std::to_string(i);
      Admitted admitted = rig.kubelet.Admit(pod, "main", 5);
      if (admitted.status.ok()) living[pod] = admitted;
    }
    killer.join();
    if (random() % 3 == 0) rig.kubelet.Stop(), rig.kubelet.Start();
    if (random() % 4 == 0) std::ofstream(rig.plugin.Path("cdi/sluice.dev-gpu_GPU-0.json")) << "{\"half";
    rig.plugin.Start();
    REQUIRE(rig.kubelet.AwaitDevices(400));
    while (living.size() > 10) rig.kubelet.Delete(living.begin()->first), living.erase(living.begin());
  }
  // Where kubelet has no checkpoint at all, nothing is deleted: one more pod sees to that.
  living["last"] = rig.kubelet.Admit("last", "main", 5);
  REQUIRE(Text(living["last"].status) == "ok");
  std::set<std::string> ids;
  size_t sum = 0;
  for (const auto& [pod, admitted] : living) {
    CHECK(IsFile(admitted.RunDir() + "/allocation.json"));
    ids.insert(admitted.ids.begin(), admitted.ids.end());
    sum += admitted.ids.size();
  }
  CHECK(ids.size() == sum);
  for (const auto& [pod, admitted] : living) rig.kubelet.Delete(pod);
  const bool all_back = rig.kubelet.Await([&] { return rig.Allocations().empty(); });
  INFO(rig.Log() << "left: " << rig.Allocations().size());
  CHECK(all_back);
}

TEST_CASE("a full disk refuses the pod and says so") {
  if (geteuid() != 0) SKIP("needs root to mount a small file system");
  Rig rig;
  rig.plugin.Node(PluginProcess::Cards(1));
  rig.kubelet.Start();
  const std::string alloc = rig.plugin.Path("alloc"), mark = rig.plugin.Path("mounted");
  fs::create_directory(alloc);
  rig.plugin.Start([&] {
    // In the child's own mount namespace. One page is the directory's file, the next write finds no space.
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", alloc.c_str(), "tmpfs", 0, "size=4k,nr_inodes=6") != 0) {
      return;
    }
    std::ofstream(mark) << "yes";
  });
  REQUIRE(rig.kubelet.AwaitDevices(100));
  if (!fs::exists(mark)) SKIP("this machine lets nobody mount");
  int served = 0;
  std::string refusal;
  for (int i = 0; i < 8 && refusal.empty(); ++i) {
    const Admitted pod = rig.kubelet.Admit("uid-" + std::to_string(i), "main", 2);
    pod.status.ok() ? void(++served) : void(refusal = pod.status.error_message());
  }
  CHECK(served <= 3);
  CHECK_THAT(refusal, ContainsSubstring("No space left on device"));
}

TEST_CASE("noise on the socket does not hurt") {
  Rig rig(1, "");
  const std::string socket_path = rig.kubelet.plugin_dir() + "/sluice.sock";
  std::mt19937 random(5);
  const auto seconds =
      std::getenv("SLUICE_FUZZ_SECONDS") != nullptr ? std::atoi(std::getenv("SLUICE_FUZZ_SECONDS")) : 2;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  // HTTP/2's preface and an empty SETTINGS frame, so that part of the noise comes further.
  const std::string preface = std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9);
  long rounds = 0;
  while (std::chrono::steady_clock::now() < until) {
    ++rounds;
    std::string noise = random() % 2 ? preface : "";
    const size_t length = random() % 400;
    for (size_t i = 0; i < length; ++i) noise += static_cast<char>(random());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    REQUIRE(socket_path.size() < sizeof address.sun_path);
    std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size());
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      (void)!send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
    }
    close(fd);
    // Well-framed calls with bodies that are no message, or one of nonsense.
    if (rounds % 10 == 0) {
      std::vector<std::string> ids;
      for (unsigned i = random() % 20; i > 0; --i) {
        std::string id;
        for (unsigned n = random() % 30; n > 0; --n) id += static_cast<char>(' ' + random() % 95);
        ids.push_back(id);
      }
      CHECK_FALSE(rig.kubelet.AllocateIds(ids).ok());
      (void)rig.kubelet.PreStart(ids);
    }
  }
  REQUIRE(rig.plugin.Running());
  CHECK(Text(rig.kubelet.Admit("uid-1", "main", 50).status) == "ok");
}

}  // namespace
}  // namespace sluice::deviceplugin
