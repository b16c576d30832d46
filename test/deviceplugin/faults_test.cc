// Faults: the plugin killed before each of its acts, kubelet killed, the node rebooted, the disk full, noise on the
// socket. A pod is served in full or refused with a reason, no unit is given out twice, and all units and directories
// are freed in the end.
#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
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

#include "common/unix_channel.h"
#include "deviceplugin/host/files.h"
#include "test/deviceplugin/kill_point.h"
#include "test/deviceplugin/rig.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

// The struct shared with the preloaded kill_point.c.
class Killer {
 public:
  explicit Killer(const std::string& file) : file_(file) {
    const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(ftruncate(fd, sizeof(KillPoint)) == 0);
    void* memory = mmap(nullptr, sizeof(KillPoint), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    REQUIRE(memory != MAP_FAILED);
    point_ = static_cast<KillPoint*>(memory);
  }
  ~Killer() { munmap(point_, sizeof *point_); }
  Killer(const Killer&) = delete;
  Killer& operator=(const Killer&) = delete;

  void PreloadInto(PluginProcess& plugin) const {
    plugin.SetVariable("LD_PRELOAD", SLUICE_KILL_POINT_LIBRARY);
    plugin.SetVariable("SLUICE_KILL_POINT", file_);
  }
  // An empty name only counts acts.
  void Arm(const std::string& name, int ordinal) {
    name.copy(point_->name, sizeof point_->name - 1);
    point_->ordinal = ordinal;
    __atomic_store_n(&point_->armed, 1, __ATOMIC_RELEASE);
  }
  void Disarm() { __atomic_store_n(&point_->armed, 0, __ATOMIC_RELEASE); }
  bool killed() const { return point_->killed != 0; }
  std::vector<std::string> seen() const {
    return {point_->seen, point_->seen + std::min(point_->acts, KILL_POINT_ACTS)};
  }

 private:
  const std::string file_;
  KillPoint* point_;
};

// After a kill at any point: starts another plugin, and another kubelet if that was killed too, and checks that nothing
// is lost.
void CheckRecovery(Rig& rig, const Admitted& first, bool kubelet_too) {
  if (kubelet_too) {
    rig.kubelet.Crash();
    rig.kubelet.Start();
  }
  rig.StartPlugin(100);
  const Admitted second = rig.kubelet.Admit("uid-2", "main", 50);
  REQUIRE(Text(second.status) == "ok");
  std::set<std::string> ids(first.ids.begin(), first.ids.end());
  for (const Admitted* pod : {&first, &second}) {
    if (!pod->status.ok()) continue;
    FakeAgent agent(pod->RunDir());
    CHECK(Text(rig.kubelet.PreStart(pod->ids)) == "ok");
  }
  if (first.status.ok()) {
    for (const auto& id : second.ids) CHECK_FALSE(ids.contains(id));
  }
  // Unreferenced and incomplete directories are removed.
  const size_t living = first.status.ok() ? 2 : 1;
  CHECK(rig.kubelet.Await([&] { return rig.Allocations().size() == living; }));
  CHECK(rig.plugin.Terminate() == 0);
}

// Runs `life` once to list its acts, then once per act, killed before that act. Returns the names of the acts before
// which it was killed.
std::set<std::string> KillAtEach(const std::function<std::vector<std::string>(const std::string&, int, bool*)>& life) {
  bool killed = false;
  const std::vector<std::string> acts = life("", 0, &killed);
  REQUIRE_FALSE(killed);
  REQUIRE(acts.size() < KILL_POINT_ACTS);
  std::map<std::string, int> count;
  std::set<std::string> died;
  for (const std::string& name : acts) {
    const int ordinal = ++count[name];
    INFO("killed before " << name << ", number " << ordinal);
    life(name, ordinal, &killed);
    if (killed) died.insert(name);
  }
  return died;
}

TEST_CASE("killed before each act of start and registration") {
  int round = 0;
  const auto died = KillAtEach([&](const std::string& name, int ordinal, bool* killed) {
    Rig rig;
    Killer killer(rig.plugin.Path("kill-point"));
    rig.plugin.WriteCards(PluginProcess::Cards(1));
    rig.plugin.Configure("collectSeconds: 1\ncollectGraceSeconds: 0\n");
    rig.kubelet.Start();
    killer.Arm(name, ordinal);
    killer.PreloadInto(rig.plugin);
    rig.plugin.Start();
    REQUIRE(rig.kubelet.Await([&] { return !rig.plugin.Running() || rig.kubelet.devices().size() == 100; }));
    killer.Disarm();
    *killed = killer.killed();
    *killed ? void(rig.plugin.Wait()) : rig.plugin.Kill();
    INFO(rig.Log());
    Admitted none;
    none.status = {grpc::StatusCode::UNAVAILABLE, ""};
    CheckRecovery(rig, none, ++round % 2 == 0);
    return killer.seen();
  });
  for (const char* act : {"flock ", "mkdir cdi", "write ", "rename libsluice.so", "rename sluice.dev-gpu_GPU-",
                          "rename plugin.json", "bind ", "listen ", "connect ", "accept ", "sendmsg "}) {
    INFO(act);
    CHECK(died.contains(act));
  }
}

TEST_CASE("killed before each act of GetPreferredAllocation and Allocate") {
  int round = 0;
  const auto died = KillAtEach([&](const std::string& name, int ordinal, bool* killed) {
    Rig rig;
    Killer killer(rig.plugin.Path("kill-point"));
    rig.plugin.WriteCards(PluginProcess::Cards(1));
    // A long poll interval, so that all acts are those of the calls.
    rig.plugin.Configure("pollMs: 3600000\ncollectSeconds: 1\ncollectGraceSeconds: 0\n");
    rig.kubelet.Start();
    killer.PreloadInto(rig.plugin);
    rig.plugin.Start();
    REQUIRE(rig.kubelet.AwaitDevices(100));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the reconciler's pass after the registration
    killer.Arm(name, ordinal);
    const Admitted first = rig.kubelet.Admit("uid-1", "main", 30);
    killer.Disarm();
    *killed = killer.killed();
    INFO(Text(first.status) << rig.Log());
    // A plugin that was killed after sending its answer has answered.
    CHECK((first.status.ok() || *killed));
    *killed ? void(rig.plugin.Wait()) : rig.plugin.Kill();
    rig.plugin.Configure("collectSeconds: 1\ncollectGraceSeconds: 0\n");
    CheckRecovery(rig, first, ++round % 2 == 0);
    return killer.seen();
  });
  for (const char* act :
       {"mkdir pod-", "chmod pod-", "create .allocation.json.", "write ", "rename allocation.json", "sendmsg "}) {
    INFO(act);
    CHECK(died.contains(act));
  }
}

TEST_CASE("after a reboot, all allocations of kubelet's checkpoint exist again") {
  Rig rig(2, "preStartWaitMs: 300\n");
  std::vector<Admitted> pods;
  for (int i = 0; i < 4; ++i) pods.push_back(rig.kubelet.Admit("uid-" + std::to_string(i), "main", 30 + i));
  for (const Admitted& pod : pods) REQUIRE(Text(pod.status) == "ok");
  const auto described = [](const Admitted& pod) {
    auto json = nlohmann::json::parse(*ReadFile(pod.RunDir() + "/allocation.json"));
    json.erase("created");
    return json;
  };
  std::vector<nlohmann::json> before;
  for (const Admitted& pod : pods) before.push_back(described(pod));
  rig.plugin.Kill();
  rig.kubelet.Crash();
  // Lost: /run and the CDI folder, which are in memory, and unsynced files on disk, in every stage of incompleteness.
  fs::remove_all(rig.plugin.Path("run"));
  fs::remove_all(rig.plugin.Path("cdi"));
  fs::remove_all(pods[0].RunDir());
  fs::remove(pods[1].RunDir() + "/allocation.json");
  fs::resize_file(pods[2].RunDir() + "/allocation.json", 0);
  fs::resize_file(pods[3].RunDir() + "/allocation.json", 40);
  fs::create_directory(rig.plugin.Path("alloc/pod-0-unreferenced"));
  rig.kubelet.Start();
  rig.StartPlugin(200);
  for (size_t i = 0; i < pods.size(); ++i) {
    INFO(i << " " << rig.Log());
    CHECK(described(pods[i]) == before[i]);
    CHECK(fs::status(pods[i].RunDir()).permissions() == fs::perms(0755));
    FakeAgent agent(pods[i].RunDir());
    CHECK(Text(rig.kubelet.PreStart(pods[i].ids)) == "ok");
  }
  CHECK(IsFile(rig.plugin.Path("cdi/sluice.dev-gpu_GPU-1.json")));
  CHECK(IsFile(rig.plugin.Path("run/plugin.json")));
}

TEST_CASE("an allocated card may disappear and return") {
  Rig rig(2, "preStartWaitMs: 300\n");
  const Admitted pod = rig.kubelet.Admit("uid-1", "main", 60);
  REQUIRE(Text(pod.status) == "ok");
  const std::string uuid = ParseDeviceId(pod.ids[0])->uuid, other = uuid == "GPU-0" ? "GPU-1" : "GPU-0";
  rig.plugin.WriteCards("card " + other + " " + other.substr(4) + " 0\n");
  REQUIRE(rig.kubelet.AwaitDevices(100, 100));
  CHECK_THAT(Text(rig.kubelet.AllocateIds({uuid + "::99"})), ContainsSubstring(uuid + " is unhealthy"));
  CHECK(Text(rig.kubelet.Admit("uid-2", "main", 60).status) == "ok");
  CHECK_THAT(Text(rig.kubelet.Admit("uid-3", "main", 60).status), ContainsSubstring("unavailable"));
  // Its container keeps its units, and can start again once the card is back.
  CHECK(IsFile(pod.RunDir() + "/allocation.json"));
  rig.plugin.WriteCards(PluginProcess::Cards(2));
  REQUIRE(rig.kubelet.AwaitDevices(200));
  FakeAgent agent(pod.RunDir());
  CHECK(Text(rig.kubelet.PreStart(pod.ids)) == "ok");
}

TEST_CASE("killed at random moments: nothing is lost or given out twice") {
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
    rig.StartPlugin(400);
    while (living.size() > 10) rig.kubelet.Delete(living.begin()->first), living.erase(living.begin());
  }
  // Without any checkpoint nothing is deleted: one more pod makes kubelet write one.
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
  INFO(rig.Log() << "remaining: " << rig.Allocations().size());
  CHECK(all_back);
}

TEST_CASE("on a full disk the pod is refused with the reason") {
  if (geteuid() != 0) SKIP("needs root to mount a small file system");
  Rig rig;
  rig.plugin.WriteCards(PluginProcess::Cards(1));
  rig.kubelet.Start();
  const std::string alloc = rig.plugin.Path("alloc"), mark = rig.plugin.Path("mounted");
  fs::create_directory(alloc);
  rig.plugin.Start([&] {
    // In the child's own mount namespace. One page is for the directory's file; the next write finds no space.
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", alloc.c_str(), "tmpfs", 0, "size=4k,nr_inodes=6") != 0) {
      return;
    }
    close(open(mark.c_str(), O_WRONLY | O_CREAT, 0644));
  });
  REQUIRE(rig.kubelet.AwaitDevices(100));
  if (!fs::exists(mark)) SKIP("this machine allows no mounts");
  int served = 0;
  std::string refusal;
  for (int i = 0; i < 8 && refusal.empty(); ++i) {
    const Admitted pod = rig.kubelet.Admit("uid-" + std::to_string(i), "main", 2);
    pod.status.ok() ? void(++served) : void(refusal = pod.status.error_message());
  }
  CHECK(served <= 3);
  CHECK_THAT(refusal, ContainsSubstring("No space left on device"));
}

// Calls any method with any bytes as its message.
grpc::Status CallWith(grpc::GenericStub& stub, const std::string& method, const std::string& bytes) {
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer body(&slice, 1);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(40));
  grpc::CompletionQueue queue;
  grpc::ByteBuffer answer;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, "/v1beta1.DevicePlugin/" + method, body, &queue);
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

// A request like kubelet's, with some bytes changed, cut off or doubled.
std::string Mutated(std::mt19937& random) {
  v1beta1::AllocateRequest
      request;  // PreStartContainer's and GetPreferredAllocation's requests differ in field numbers only
  auto* one = request.add_container_requests();
  for (unsigned i = random() % 30; i > 0; --i) one->add_devices_ids("GPU-0::" + std::to_string(random() % 110));
  std::string bytes = request.SerializeAsString();
  for (unsigned i = random() % 6; i > 0 && !bytes.empty(); --i)
    bytes[random() % bytes.size()] = static_cast<char>(random());
  if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
  if (random() % 8 == 0) bytes += bytes;
  return bytes;
}

TEST_CASE("noise on the socket does no harm") {
  Rig rig(1, "preStartWaitMs: 0\ncollectSeconds: 1\ncollectGraceSeconds: 0\nlogLevel: ERROR\n");
  const std::string socket_path = rig.kubelet.plugin_dir() + "/sluice.sock";
  std::mt19937 random(5);
  const char* const fuzz_seconds = std::getenv("SLUICE_FUZZ_SECONDS");
  const auto seconds = fuzz_seconds != nullptr ? std::atoi(fuzz_seconds) : 2;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  // HTTP/2's preface and an empty SETTINGS frame, so that part of the noise reaches the later stages.
  const std::string preface = std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9);
  grpc::GenericStub stub(UnixChannel(socket_path));
  const char* const methods[] = {"Allocate", "GetPreferredAllocation", "PreStartContainer", "GetDevicePluginOptions",
                                 "Other"};
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
    // Well-framed calls whose bodies are not messages, or are nonsense.
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
    const grpc::Status status = CallWith(stub, methods[random() % 5], Mutated(random));
    INFO(status.error_message());
    REQUIRE(status.error_code() != grpc::StatusCode::UNAVAILABLE);
  }
  REQUIRE(rig.plugin.Running());
  CHECK(Text(rig.kubelet.Admit("uid-1", "main", 50).status) == "ok");
}

}  // namespace
}  // namespace sluice::deviceplugin
