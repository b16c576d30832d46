// Files, threads and formats of other programs: allocation store, hook library, CDI, checkpoint, start requirements,
// bounded NVML.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/escaping.h"
#include "deviceplugin.pb.h"
#include "deviceplugin/host/allocation_store.h"
#include "deviceplugin/host/cdi.h"
#include "deviceplugin/host/checkpoint.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/host/hook_library.h"
#include "deviceplugin/host/pre_start.h"
#include "deviceplugin/nvml/bounded_nvml.h"
#include "deviceplugin/program.h"
#include "sluice/names.h"
#include "test/deviceplugin/cards_for_tests.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
using namespace std::chrono_literals;

Grant Half(const std::string& uuid) {
  Inventory node;
  node.cards = {HealthyCard(uuid)};
  return *DecideGrant(Ids(uuid, 0, 50), node);
}

void Put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST_CASE("each allocation gets a new, complete directory that any user can read") {
  TempDir dir;
  AllocationStore store(dir / "alloc");
  REQUIRE(store.Prepare().ok());
  const auto old_mask = umask(0077);
  auto first = store.Create(Half("GPU-a")), second = store.Create(Half("GPU-a"));
  umask(old_mask);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->id != second->id);
  struct stat st;
  REQUIRE(stat(first->directory.c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0755);
  const auto json = nlohmann::json::parse(*ReadFile(first->directory + "/allocation.json"));
  CHECK(json["version"] == 1);
  CHECK(json["id"] == first->id);
  CHECK(json["gpus"] == nlohmann::json::parse(R"([{"uuid":"GPU-a","units":50}])"));
  CHECK(ListDir(first->directory)->size() == 1);  // no temporary file remains

  std::filesystem::create_directory(dir / "alloc/run-of-another-program");
  auto list = store.List();
  REQUIRE(list->size() == 2);
  CHECK((*list)[0].device_ids.size() == 50);
  REQUIRE(store.Remove(first->id).ok());
  CHECK(store.List()->size() == 1);
  CHECK_FALSE(store.Remove("run-of-another-program").ok());
  CHECK_FALSE(store.Remove("pod-/../../x").ok());
}

TEST_CASE("a directory that cannot be made leaves nothing behind and the error names it") {
  AllocationStore store("/proc/sluice-cannot-be-made");
  auto made = store.Create(Half("GPU-a"));
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(std::string(made.status().message()), ContainsSubstring("/proc/sluice-cannot-be-made"));
}

TEST_CASE("hook library versions are immutable and named by their content") {
  TempDir dir;
  std::filesystem::create_directory(dir / "src");
  CHECK_FALSE(InstallHookLibrary(dir / "src", dir / "lib").ok());
  Put(dir / "src/libsluice.so", "shim");
  CHECK_FALSE(InstallHookLibrary(dir / "src", dir / "lib").ok());
  Put(dir / "src/libsluice_engine.so", "engine");
  auto first = InstallHookLibrary(dir / "src", dir / "lib");
  REQUIRE(first.ok());
  CHECK(CheckHookLibrary(*first).ok());
  CHECK(*InstallHookLibrary(dir / "src", dir / "lib") == *first);
  Put(dir / "src/libsluice_engine.so", "another engine");
  auto second = InstallHookLibrary(dir / "src", dir / "lib");
  REQUIRE(second.ok());
  CHECK(*second != *first);
  CHECK(*ReadFile(*first + "/libsluice_engine.so") == "engine");
  CHECK(ListHookLibraries(dir / "lib").size() == 2);
  Put(*second + "/libsluice.so", "damaged");
  CHECK_THAT(std::string(InstallHookLibrary(dir / "src", dir / "lib").status().message()),
             ContainsSubstring("does not match its name"));
  std::filesystem::remove(*first + "/libsluice.so");
  CHECK_THAT(std::string(CheckHookLibrary(*first).message()), ContainsSubstring("libsluice.so"));
}

TEST_CASE("with SELinux the hook library is labelled for containers") {
  TempDir dir;
  Put(dir / "libsluice.so", "shim");
  Put(dir / "libsluice_engine.so", "engine");
  const std::string label = "system_u:object_r:container_file_t:s0";
  REQUIRE(InstallHookLibrary(dir.path(), dir / "plain", "").ok());
  auto made = InstallHookLibrary(dir.path(), dir / "lib", label);
  if (!made.ok()) {
    // Not root, or a file system without such attributes: the message names the fix, and nothing incomplete remains.
    CHECK_THAT(std::string(made.status().message()),
               ContainsSubstring("SELinux") && ContainsSubstring("node.seLinuxType"));
    CHECK(ListDir(dir / "lib")->empty());
    SKIP("security attributes cannot be set here: " + std::string(made.status().message()));
  }
  for (const std::string& path : {*made, *made + "/libsluice.so", *made + "/libsluice_engine.so"}) {
    char value[128] = {};
    CHECK(getxattr(path.c_str(), "security.selinux", value, sizeof(value)) == static_cast<ssize_t>(label.size() + 1));
    CHECK(value == label);
  }
  // A version that was installed before SELinux was switched on.
  CHECK(*InstallHookLibrary(dir.path(), dir / "plain", label) == (dir / "plain") + "/" + *HookLibraryId(dir.path()));
  char value[128] = {};
  CHECK(getxattr((*HookLibraryId(dir.path())).insert(0, (dir / "plain") + "/").c_str(), "security.selinux", value,
                 sizeof(value)) > 0);
}

TEST_CASE("with SELinux an allocation's folder, file and socket are labelled for containers") {
  TempDir dir;
  const std::string label = "system_u:object_r:container_file_t:s0";
  const Grant grant = Half("GPU-1");
  // Made before SELinux was switched on, or by a version that labelled nothing. The agent's socket is there.
  const AllocationStore plain(dir / "alloc", ""), labelled(dir / "alloc", label);
  REQUIRE(plain.Prepare().ok());
  const auto old = plain.Create(grant);
  REQUIRE(old.ok());
  Put(old->directory + "/agent.sock", "");
  const auto made = labelled.Create(grant);
  if (!made.ok()) {
    CHECK_THAT(std::string(made.status().message()), ContainsSubstring("node.seLinuxType"));
    CHECK(plain.List()->size() == 1);
    SKIP("security attributes cannot be set here: " + std::string(made.status().message()));
  }
  CHECK(LabelOf(made->directory) == label);
  CHECK(LabelOf(made->directory + "/allocation.json") == label);
  CHECK(LabelOf(old->directory).empty());
  CHECK_FALSE(*labelled.Restore(old->directory, grant.ids));
  for (const char* name : {"", "/allocation.json", "/agent.sock"}) CHECK(LabelOf(old->directory + name) == label);
  CHECK(LabelOf(dir / "alloc").empty());  // containers see their own folder alone
}

TEST_CASE("a hook library folder that is mounted noexec is refused") {
  // A noexec mount of this machine, such as /sys, /proc or /dev/shm. Nothing is written before the check.
  std::ifstream mounts("/proc/self/mounts");
  std::string device, point, type, options, noexec;
  for (std::string rest; mounts >> device >> point >> type >> options && std::getline(mounts, rest);) {
    struct statvfs fs;
    if (statvfs(point.c_str(), &fs) == 0 && (fs.f_flag & ST_NOEXEC) != 0 && IsDir(point)) noexec = point;
  }
  TempDir dir;
  if (noexec.empty() && unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0) {
    // As root without such a mount: mount one in a namespace of this process.
    std::filesystem::create_directory(dir / "noexec");
    if (mount("tmpfs", (dir / "noexec").c_str(), "tmpfs", MS_NOEXEC, nullptr) == 0) noexec = dir / "noexec";
  }
  if (noexec.empty()) SKIP("no folder on this machine is mounted noexec");
  Put(dir / "libsluice.so", "shim");
  Put(dir / "libsluice_engine.so", "engine");
  auto made = InstallHookLibrary(dir.path(), noexec);
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(std::string(made.status().message()), ContainsSubstring("mounted noexec"));
  if (noexec == dir / "noexec") umount(noexec.c_str());
}

TEST_CASE("a CDI spec is valid, names the card and the driver files, and follows changes") {
  TempDir dir;
#if defined(__aarch64__)
  const std::string libs = dir / "root/usr/lib/aarch64-linux-gnu/";
#else
  const std::string libs = dir / "root/usr/lib/x86_64-linux-gnu/";
#endif
  std::filesystem::create_directories(libs);
  std::filesystem::create_directories(dir / "dev");
  Put(libs + "libcuda.so.580.1", "x");
  std::filesystem::create_symlink("libcuda.so.580.1", libs + "libcuda.so.1");
  Put(libs + "libnvidia-ml.so.1", "x");
  Put(libs + "libc.so.6", "x");
  Put(dir / "dev/nvidiactl", "");
  Put(dir / "dev/nvidia-uvm", "");
  const DriverFiles driver = FindDriverFiles(dir / "root", dir / "dev");
  CHECK(driver.control_nodes.size() == 2);
  CHECK(driver.libraries.size() == 6);  // three names, two places each
  const std::string spec = MakeCdiSpec(HealthyCard("GPU-a", 4), driver, dir / "dev");
  REQUIRE(ValidateCdiSpec(spec).ok());
  CHECK_THAT(spec, ContainsSubstring("/dev/nvidia4") && ContainsSubstring(dir / "dev/nvidia4"));

  CHECK(*SyncCdiSpecs(dir / "cdi", {HealthyCard("GPU-a", 4), HealthyCard("GPU-b", 5)}, driver, "/dev", {}, true) == 2);
  CHECK(*SyncCdiSpecs(dir / "cdi", {HealthyCard("GPU-a", 4), HealthyCard("GPU-b", 5)}, driver, "/dev", {}, true) == 0);
  CHECK(ListCdiNames({dir / "cdi"}) == std::vector<std::string>{"sluice.dev/gpu=GPU-a", "sluice.dev/gpu=GPU-b"});
  // The spec of an absent card stays while a container has its name, and without permission to remove.
  Put(dir / "cdi/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n- name: GPU-a\n");
  CHECK(*SyncCdiSpecs(dir / "cdi", {HealthyCard("GPU-a", 4)}, driver, "/dev", {"sluice.dev/gpu=GPU-b"}, true) == 0);
  CHECK(*SyncCdiSpecs(dir / "cdi", {HealthyCard("GPU-a", 4)}, driver, "/dev", {}, false) == 0);
  CHECK(*SyncCdiSpecs(dir / "cdi", {HealthyCard("GPU-a", 4)}, driver, "/dev", {}, true) == 1);
  CHECK(ListCdiNames({dir / "cdi"}) ==
        std::vector<std::string>{"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-a", "sluice.dev/gpu=GPU-a"});
  // Truncated by a crash: rewritten. Driver absent: kept.
  Put(dir / "cdi/sluice.dev-gpu_GPU-a.json", "{\"cdiVersion\":");
  CHECK(*SyncCdiSpecs(dir / "cdi", {HealthyCard("GPU-a", 4)}, driver, "/dev", {}, true) == 1);
  CHECK(*SyncCdiSpecs(dir / "cdi", {HealthyCard("GPU-a", 4)}, DriverFiles{}, "/dev", {}, true) == 0);
  Put(dir / "cdi/sluice.dev-gpu_GPU-a.json", "{");
  CHECK(*SyncCdiSpecs(dir / "cdi", {HealthyCard("GPU-a", 4)}, DriverFiles{}, "/dev", {}, true) == 1);
}

TEST_CASE("CDI specs that the runtime would refuse are not written") {
  const char* good =
      R"({"cdiVersion":"0.6.0","kind":"a.b/c","devices":[{"name":"x","containerEdits":{"env":["A=b"]}}]})";
  CHECK(ValidateCdiSpec(good).ok());
  for (
      const char* bad :
      {R"({"kind":"a.b/c","devices":[{"name":"x","containerEdits":{"env":["A=b"]}}]})",
       R"({"cdiVersion":"0.6.0","kind":"ab","devices":[{"name":"x","containerEdits":{"env":["A=b"]}}]})",
       R"({"cdiVersion":"0.6.0","kind":"a/b","devices":[]})",
       R"({"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"-x","containerEdits":{"env":["A=b"]}}]})",
       R"({"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"x"}]})",
       R"({"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"x","containerEdits":{"env":["A"]}}]})",
       R"({"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"x","containerEdits":{"deviceNodes":[{"path":"x"}]}}]})",
       R"({"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"x","containerEdits":{"deviceNodes":[{"path":"/x","permissions":"q"}]}}]})",
       R"({"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"x","containerEdits":{"mounts":[{"hostPath":"/x"}]}}]})",
       R"({"cdiVersion":"0.6.0","kind":"a/b","devices":[{"name":"x","containerEdits":{"mount":[]}}]})",
       R"({"cdiVersion":"0.6.0",)"}) {
    INFO(bad);
    CHECK_FALSE(ValidateCdiSpec(bad).ok());
  }
}

std::string Checkpoint(const std::string& run, const std::string& lib, const std::vector<std::string>& ids) {
  v1beta1::ContainerAllocateResponse response;
  auto* m = response.add_mounts();
  m->set_container_path(SLUICE_CONTAINER_RUN_DIR);
  m->set_host_path(run);
  m = response.add_mounts();
  m->set_container_path(SLUICE_CONTAINER_LIB_DIR);
  m->set_host_path(lib);
  response.add_cdi_devices()->set_name("sluice.dev/gpu=GPU-a");
  const nlohmann::json entry = {{"PodUID", "uid"},
                                {"ContainerName", "main"},
                                {"ResourceName", SLUICE_RESOURCE},
                                {"DeviceIDs", {{"-1", ids}}},
                                {"AllocResp", absl::Base64Escape(response.SerializeAsString())}};
  const nlohmann::json other = {{"PodUID", "uid2"},
                                {"ContainerName", "c"},
                                {"ResourceName", "vendor/x"},
                                {"DeviceIDs", {{"0", {"y"}}}},
                                {"AllocResp", ""}};
  return nlohmann::json{
      {"Data", {{"PodDeviceEntries", {entry, other}}, {"RegisteredDevices", {{SLUICE_RESOURCE, ids}}}}},
      {"Checksum", 1}}
      .dump();
}

TEST_CASE("kubelet's checkpoint is read in full or rejected") {
  const std::string text = Checkpoint("/a/pod-1", "/l/1", {"GPU-a::3", "GPU-a::1"});
  auto given = ParseCheckpoint(text);
  REQUIRE(given.ok());
  REQUIRE(given->size() == 1);
  CHECK(given->front().run_dir == "/a/pod-1");
  CHECK(given->front().lib_dir == "/l/1");
  CHECK(given->front().device_ids == std::vector<std::string>{"GPU-a::1", "GPU-a::3"});
  CHECK(given->front().cdi_names == std::vector<std::string>{"sluice.dev/gpu=GPU-a"});
  CHECK(ParseCheckpoint(R"({"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3})")->empty());
  // Truncated anywhere, it is unreadable, and never read as a shorter list.
  for (size_t length = 0; length < text.size(); length += 7) CHECK_FALSE(ParseCheckpoint(text.substr(0, length)).ok());
  for (
      const char* odd :
      {"[]", R"({"Data":[]})", R"({"Data":{}})", R"({"Data":{"PodDeviceEntries":{}}})",
       R"({"Data":{"PodDeviceEntries":[1]}})",
       R"({"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"sluice.dev/gpu-percent"}]}})"}) {
    INFO(odd);
    CHECK_FALSE(ParseCheckpoint(odd).ok());
  }
}

struct Listener {
  explicit Listener(const std::string& path) {
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(fd, 8) == 0);
  }
  ~Listener() { close(fd); }
  int fd;
};

TEST_CASE("a container may start only with hook library, directory and a running agent") {
  TempDir dir;
  AllocationStore store(dir / "alloc");
  REQUIRE(store.Prepare().ok());
  std::filesystem::create_directory(dir / "lib");
  Put(dir / "lib/libsluice.so", "shim");
  Put(dir / "lib/libsluice_engine.so", "engine");
  const Grant grant = Half("GPU-a");
  const auto allocation = *store.Create(grant);
  const absl::StatusOr<std::vector<CheckpointEntry>> none = absl::NotFoundError("no checkpoint");

  auto needs = FindStartRequirements(grant.ids, none, store, dir / "lib");
  REQUIRE(needs.ok());
  REQUIRE(needs->size() == 1);
  const StartRequirements need = needs->front();
  CHECK(need.run_dir == allocation.directory);
  CHECK(absl::IsUnavailable(CheckStartRequirements(need)));
  {
    Listener agent(allocation.directory + "/agent.sock");
    CHECK(CheckStartRequirements(need).ok());
    std::filesystem::rename(dir / "lib/libsluice.so", dir / "away");
    CHECK(RefusalReason(CheckStartRequirements(need)) == "library");
    std::filesystem::rename(dir / "away", dir / "lib/libsluice.so");
    std::filesystem::rename(allocation.directory + "/allocation.json", dir / "away");
    CHECK(RefusalReason(CheckStartRequirements(need)) == "directory");
    std::filesystem::rename(dir / "away", allocation.directory + "/allocation.json");
    CHECK(CheckStartRequirements(need).ok());
  }
  // The socket file remains when the agent is gone, but does not answer.
  CHECK_THAT(std::string(CheckStartRequirements(need).message()), ContainsSubstring("does not answer"));

  // The checkpoint decides if it lists the devices: here it names an older directory that no longer exists.
  auto checkpoint = ParseCheckpoint(Checkpoint(dir / "alloc/pod-gone", dir / "lib", grant.ids));
  needs = FindStartRequirements(grant.ids, checkpoint, store, dir / "lib");
  REQUIRE(needs.ok());
  CHECK(RefusalReason(CheckStartRequirements(needs->front())) == "directory");
  CHECK(RefusalReason(FindStartRequirements(Ids("GPU-a", 50, 60), checkpoint, store, dir / "lib").status()) ==
        "directory");
}

// A fake whose calls hang on demand, set from another thread.
struct FakeNvml : NvmlApi {
  std::atomic<bool> hang = false;
  std::atomic<int> calls = 0;
  void MaybeHang() {
    ++calls;
    while (hang) std::this_thread::sleep_for(1ms);
  }
  absl::Status Open() override { return MaybeHang(), absl::OkStatus(); }
  absl::StatusOr<std::string> DriverVersion() override { return MaybeHang(), std::string("580.1"); }
  absl::StatusOr<int> Count() override { return MaybeHang(), 1; }
  absl::StatusOr<CardReading> Read(int) override { return MaybeHang(), Reading("GPU-a"); }
  absl::StatusOr<std::optional<NvmlEvent>> WaitEvent(std::chrono::milliseconds) override {
    return MaybeHang(), std::optional<NvmlEvent>();
  }
};

TEST_CASE("a driver call that hangs is abandoned, and after several no more are made") {
  auto fake = std::make_shared<FakeNvml>();
  BoundedNvml patient(fake, 60s);
  CHECK(patient.Open().ok());
  CHECK(patient.Read(0)->uuid == "GPU-a");
  BoundedNvml nvml(fake, 50ms);
  fake->hang = true;
  for (int i = 0; i < BoundedNvml::kMaxStuckCalls; ++i) CHECK(absl::IsDeadlineExceeded(nvml.Count().status()));
  CHECK(nvml.stuck_calls() == BoundedNvml::kMaxStuckCalls);
  const int before = fake->calls;
  CHECK_THAT(std::string(nvml.Count().status().message()), ContainsSubstring("was not called"));
  CHECK(fake->calls == before);
  fake->hang = false;
  // A busy machine may exceed the bound once more.
  while (nvml.stuck_calls() > 0 || !nvml.Count().ok()) std::this_thread::sleep_for(1ms);
}

TEST_CASE("memory of the work is given back when no call has come for two seconds, and once a minute while they come") {
  IdleMemory memory;
  auto now = IdleMemory::Clock::now();
  const auto after = [&](auto time, uint64_t calls, bool registered = true) {
    return memory.Step(registered, calls, now += time);
  };
  CHECK_FALSE(after(60s, 0, false));  // not registered yet: the start is under way
  CHECK_FALSE(after(0s, 0));
  CHECK_FALSE(after(1s, 0));
  CHECK(after(1s, 0));  // the start's memory
  CHECK_FALSE(after(60s, 0));
  CHECK_FALSE(after(1s, 1));
  CHECK_FALSE(after(1s, 2));
  CHECK(after(2s, 2));
  CHECK_FALSE(after(1h, 2, false));  // kubelet restarts
  int drops = 0;
  for (uint64_t calls = 3; calls < 303; ++calls) drops += after(1s, calls);
  CHECK(drops == 4);  // each a minute after the first call that follows the last
  // Code that runs again is there.
  CHECK(DecideGrant(Ids("GPU-a", 0, 50), Inventory{}).status().code() != absl::StatusCode::kOk);
}

}  // namespace
}  // namespace sluice::deviceplugin
