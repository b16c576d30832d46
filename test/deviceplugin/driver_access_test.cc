// How containers get the driver, decided from a node's files; cards that cannot be given.
#include "deviceplugin/decide/driver_access.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>

#include "deviceplugin/decide/card_inventory.h"
#include "deviceplugin/host/cdi.h"
#include "deviceplugin/host/nvidia_node.h"
#include "test/deviceplugin/cards_for_tests.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;

void Put(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

AccessFacts Facts(const std::string& setting) {
  AccessFacts facts;
  facts.setting = setting;
  facts.driver_root = "/";
  facts.device_root = "/dev";
  return facts;
}

TEST_CASE("auto takes the source that gives containers a libcuda") {
  const std::vector<Card> cards = {HealthyCard("GPU-a"), HealthyCard("GPU-b")};
  AccessFacts facts = Facts("auto");
  SECTION("CDI specs by UUID") {
    facts.cdi_names = {"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b", "nvidia.com/gpu=all"};
    facts.nvidia_runtime = "it mounted NVML";
    const AccessChoice choice = ChooseAccess(facts, cards);
    CHECK(choice.access == DriverAccess::kNvidiaCdi);
    CHECK(CardAccessProblem(facts, choice, cards[0], false).empty());
  }
  SECTION("NVIDIA's runtime") {
    facts.cdi_names = {"nvidia.com/gpu=0", "nvidia.com/gpu=all"};
    facts.nvidia_runtime = "it mounted NVML";
    const AccessChoice choice = ChooseAccess(facts, cards);
    CHECK(choice.access == DriverAccess::kNvidiaRuntime);
    CHECK(CardAccessProblem(facts, choice, cards[0], false).empty());
  }
  SECTION("libraries and device nodes") {
    facts.has_libcuda = facts.has_control_node = true;
    const AccessChoice choice = ChooseAccess(facts, cards);
    CHECK(choice.access == DriverAccess::kOwn);
    CHECK(CardAccessProblem(facts, choice, cards[0], true).empty());
  }
  SECTION("a new card that the specs do not name yet") {
    facts.cdi_names = {"nvidia.com/gpu=GPU-a"};
    const AccessChoice choice = ChooseAccess(facts, cards);
    CHECK(choice.access == DriverAccess::kNvidiaCdi);
    CHECK(CardAccessProblem(facts, choice, cards[0], false).empty());
    CHECK_THAT(
        CardAccessProblem(facts, choice, cards[1], false),
        ContainsSubstring("no CDI spec on this node names nvidia.com/gpu=GPU-b (they name nvidia.com/gpu=GPU-a)") &&
            ContainsSubstring("--device-name-strategy=uuid"));
  }
  SECTION("cards that are not offered need no name") {
    std::vector<Card> some = cards;
    some[1].state = CardState::kNotOffered;
    facts.cdi_names = {"nvidia.com/gpu=GPU-a"};
    CHECK(ChooseAccess(facts, some).why == "auto: NVIDIA's CDI specs name every card");
  }
}

TEST_CASE("auto offers nothing where containers would start without libcuda, and says why") {
  const std::vector<Card> cards = {HealthyCard("GPU-a")};
  AccessFacts facts = Facts("auto");
  const auto problem = [&] { return CardAccessProblem(facts, ChooseAccess(facts, cards), cards[0], false); };
  CHECK_THAT(problem(), ContainsSubstring("would start without libcuda") && ContainsSubstring("(there are none)") &&
                            ContainsSubstring("no libcuda.so.1 lies under driverRoot, /") &&
                            ContainsSubstring("driver.runtimeClassName"));
  facts.cdi_names = {"nvidia.com/gpu=0", "nvidia.com/gpu=all"};  // names by index
  CHECK_THAT(problem(), ContainsSubstring("(they name nvidia.com/gpu=0, nvidia.com/gpu=all)"));
  facts.cdi_names = {"management.nvidia.com/gpu=all", "management.nvidia.com/gpu=GPU-a"};
  CHECK_THAT(problem(), ContainsSubstring("management.nvidia.com/gpu=all"));
  facts.cdi_names.clear();
  for (int i = 0; i < 9; ++i) facts.cdi_names.insert("nvidia.com/gpu=" + std::to_string(i));
  CHECK_THAT(problem(), ContainsSubstring("and 5 more"));
  facts.has_libcuda = true;  // and no device nodes
  CHECK_THAT(problem(), ContainsSubstring("no nvidiactl lies in deviceRoot, /dev"));
}

TEST_CASE("a driver access that is set is checked too") {
  const std::vector<Card> cards = {HealthyCard("GPU-a")};
  AccessFacts facts = Facts("nvidia-cdi");
  const auto problem = [&](bool own) { return CardAccessProblem(facts, ChooseAccess(facts, cards), cards[0], own); };
  facts.cdi_names = {"nvidia.com/gpu=0"};
  CHECK_THAT(problem(false), ContainsSubstring("no CDI spec on this node names nvidia.com/gpu=GPU-a"));
  facts.cdi_names.insert("nvidia.com/gpu=GPU-a");
  CHECK(problem(false).empty());
  facts.setting = "own";
  facts.driver_root = "/opt/driver";
  CHECK_THAT(problem(false), ContainsSubstring("no libcuda.so.1 lies under driverRoot, /opt/driver"));
  CHECK(problem(true).empty());  // also while a driver is upgraded: the old spec holds
  facts.setting = "nvidia-runtime";
  CHECK(problem(false).empty());
}

TEST_CASE("NVIDIA's runtime is seen by its mounts, or by the engine's configuration") {
  CHECK(NvmlMountOf("").empty());
  CHECK(NvmlMountOf("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 8:1 /x /opt/driver ro - ext4 /dev/sda1 rw\n").empty());
  CHECK(NvmlMountOf("31 22 8:1 /usr/lib/libnvidia-ml.so.550.90.07 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.90.07 "
                    "ro,nosuid - ext4 /dev/sda1 rw\n") == "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.90.07");
  CHECK(MakesNvidiaRuntimeDefault("[plugins.cri.containerd]\n  default_runtime_name = \"nvidia\"\n"));
  CHECK(MakesNvidiaRuntimeDefault("{\"default-runtime\": \"nvidia\", \"runtimes\": {}}"));
  CHECK(MakesNvidiaRuntimeDefault("default_runtime = \"nvidia-cdi\"\n"));
  CHECK_FALSE(MakesNvidiaRuntimeDefault("# default_runtime_name = \"nvidia\"\n"));
  CHECK_FALSE(MakesNvidiaRuntimeDefault("default_runtime_name = \"runc\"\n[runtimes.nvidia]\n"));
  CHECK_FALSE(MakesNvidiaRuntimeDefault("default_runtime_name ="));
  CHECK_FALSE(MakesNvidiaRuntimeDefault(""));
}

TEST_CASE("a card without a memory size is not offered, and the reason says so") {
  CardInventory inventory({});
  CardInventory::Readings readings;
  readings.cards = {Reading("GPU-a"), Reading("GPU-b")};
  readings.cards[1].memory_bytes = 0;
  readings.cards[1].model = "NVIDIA GB10";
  inventory.ApplyReadings(readings, {});
  const Inventory now = inventory.Current();
  CHECK(now.Find("GPU-a")->state == CardState::kHealthy);
  CHECK(now.Find("GPU-b")->state == CardState::kNotOffered);
  CHECK(now.Find("GPU-b")->reason == "no-memory-size");
  CHECK_THAT(now.Find("GPU-b")->detail, ContainsSubstring("no memory size of this card (NVIDIA GB10)"));
}

TEST_CASE("a node's files show NVIDIA's runtime, and GPUs without a driver") {
  TempDir dir;
  const std::string no_mounts = dir / "mountinfo", root = dir / "root";
  Put(no_mounts, "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
  CHECK(FindNvidiaRuntime(root, no_mounts).empty());
  // The toolkit alone: containerd starts containers by runc.
  Put(root + "/usr/bin/nvidia-container-runtime", "program");
  Put(root + "/etc/containerd/config.toml", "default_runtime_name = \"runc\"\n");
  CHECK(FindNvidiaRuntime(root, no_mounts).empty());
  Put(root + "/etc/containerd/conf.d/99-nvidia.toml", "default_runtime_name = \"nvidia\"\n");
  CHECK_THAT(FindNvidiaRuntime(root, no_mounts), ContainsSubstring("conf.d/99-nvidia.toml"));
  Put(dir / "served", "31 22 8:1 /l /usr/lib64/libnvidia-ml.so.580.1 ro - ext4 /dev/sda1 rw\n");
  CHECK_THAT(FindNvidiaRuntime("/", dir / "served"), ContainsSubstring("/usr/lib64/libnvidia-ml.so.580.1"));

  CHECK(CountPciGpus(dir / "sys") == 0);
  const auto device = [&](const std::string& address, const std::string& vendor, const std::string& kind) {
    Put(dir / ("sys/bus/pci/devices/" + address + "/vendor"), vendor + "\n");
    Put(dir / ("sys/bus/pci/devices/" + address + "/class"), kind + "\n");
  };
  device("0000:01:00.0", "0x10de", "0x030200");
  device("0000:01:00.1", "0x10de", "0x040300");  // its sound
  device("0000:02:00.0", "0x10de", "0x030000");
  device("0000:03:00.0", "0x1a03", "0x030000");  // another vendor's
  CHECK(CountPciGpus(dir / "sys") == 2);
}

TEST_CASE("names of CDI specs are read as the runtime reads them") {
  TempDir dir;
  Put(dir / "cdi/nvidia.yaml",
      "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  hooks:\n  - hookName: createContainer\n    path: "
      "/usr/bin/nvidia-ctk\n"
      "devices:\n- annotations: {name: no}\n  containerEdits: {}\n  name: \"0\"\n- name: all\nkind: nvidia.com/gpu\n");
  Put(dir / "cdi/quoted.yaml", "kind: \"nvidia.com/gpu\"\ndevices: [{name: 'GPU-a', containerEdits: {}}]\n");
  Put(dir / "cdi/management.yaml", "kind: management.nvidia.com/gpu\ndevices:\n- name: GPU-b\n");
  Put(dir / "cdi/vendor.json", R"({"kind":"vendor.com/x","devices":[{"name":"y"},{"name":1},{}]})");
  Put(dir / "cdi/broken.yaml", "kind: [\n");
  Put(dir / "cdi/list.yaml", "- kind: nvidia.com/gpu\n");
  Put(dir / "cdi/other.txt", "kind: nvidia.com/gpu\ndevices: [{name: z}]\n");
  auto names = ListCdiNames({dir / "cdi", dir / "missing"});
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"management.nvidia.com/gpu=GPU-b", "nvidia.com/gpu=0", "nvidia.com/gpu=GPU-a",
                                          "nvidia.com/gpu=all", "vendor.com/x=1", "vendor.com/x=y"});
}

TEST_CASE("own specs: the driver's libraries lie in many places, and a spec shows whether it mounts libcuda") {
  TempDir dir;
  for (const char* folder : {"usr/lib64", "usr/lib", "lib64", "lib", "."}) {
    INFO(folder);
    const std::string root = dir / std::string("root-") + std::to_string(std::string(folder).size()) + folder[0];
    Put(root + "/" + folder + "/libcuda.so.1", "x");
    Put(root + "/" + folder + "/libnvidia-encode.so.1", "x");
    const DriverFiles driver = FindDriverFiles(root, dir / "dev");
    CHECK(driver.libraries.size() == 4);  // two names, two places each
    CHECK(MountsLibcuda(MakeCdiSpec(HealthyCard("GPU-a"), driver, dir / "dev")));
  }
  CHECK_FALSE(MountsLibcuda(MakeCdiSpec(HealthyCard("GPU-a"), DriverFiles{}, dir / "dev")));
  for (const char* text :
       {"", "{", "[]", "{}", R"({"containerEdits":{"mounts":[1,{"containerPath":"/usr/lib/libc.so"}]}})"})
    CHECK_FALSE(MountsLibcuda(text));
}

}  // namespace
}  // namespace sluice::deviceplugin
