// The built program on nodes that give containers the driver in different ways, or in none.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>

#include "deviceplugin/host/files.h"
#include "test/deviceplugin/rig.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

TEST_CASE("CDI specs follow changes of the driver") {
  Rig rig(1, "");
  const auto names = [&](const std::string& library) {
    return ReadFile(rig.plugin.Path("cdi/sluice.dev-gpu_GPU-0.json"))->find(library) != std::string::npos;
  };
  fs::create_directory(rig.plugin.Path("driver"));
  for (const char* name : {"driver/libcuda.so.580.1", "driver/libcuda.so.1"})
    std::ofstream(rig.plugin.Path(name)) << "x";
  CHECK(rig.kubelet.Await([&] { return names("libcuda.so.580.1"); }));
  fs::rename(rig.plugin.Path("driver/libcuda.so.580.1"), rig.plugin.Path("driver/libcuda.so.581.2"));
  CHECK(rig.kubelet.Await([&] { return names("libcuda.so.581.2") && !names("libcuda.so.580.1"); }));
}

TEST_CASE("driver access follows the setting, and a card that no container could use is not offered") {
  Rig rig(1, "");
  const auto logged = [&](const char* text) {
    return rig.kubelet.Await([&] { return rig.plugin.Log().find(text) != std::string::npos; });
  };
  const auto state = [&] { return ReadFile(rig.plugin.Path("run/plugin.json")).value_or(""); };
  CHECK(rig.kubelet.Admit("uid-1", "main", 10).response.cdi_devices(0).name() == "sluice.dev/gpu=GPU-0");
  // Libraries without device nodes, and nothing of NVIDIA's.
  rig.plugin.Configure("driverAccess: auto\n");
  CHECK(rig.kubelet.AwaitDevices(0));
  CHECK(rig.kubelet.Await([&] { return state().find("driver-access") != std::string::npos; }));
  CHECK_THAT(state(),
             ContainsSubstring("no nvidiactl lies in deviceRoot") && ContainsSubstring("driver.runtimeClassName"));
  CHECK_THAT(Text(rig.kubelet.AllocateIds({"GPU-0::1"})), ContainsSubstring("would start without libcuda"));
  std::ofstream(rig.plugin.Path("dev/nvidiactl")) << "";
  CHECK(rig.kubelet.AwaitDevices(100));
  CHECK(logged("own (auto"));
  // Specs by index alone name no card for certain.
  fs::create_directory(rig.plugin.Path("nvidia-cdi"));
  const auto write_spec = [&](const std::string& kind, const std::string& name) {
    std::ofstream(rig.plugin.Path("nvidia-cdi/nvidia.yaml"))
        << "cdiVersion: 0.5.0\ncontainerEdits: {}\ndevices:\n- containerEdits: {}\n  name: \"" + name +
               "\"\nkind: " + kind + "\n";
  };
  write_spec("nvidia.com/gpu", "0");
  rig.plugin.Configure("driverAccess: nvidia-cdi\n");
  CHECK(rig.kubelet.AwaitDevices(0));
  CHECK(logged("no CDI spec on this node names nvidia.com/gpu=GPU-0 (they name nvidia.com/gpu=0)"));
  CHECK(logged("nvidia-ctk cdi generate --device-name-strategy=uuid"));
  write_spec("management.nvidia.com/gpu", "GPU-0");
  CHECK(logged("they name management.nvidia.com/gpu=GPU-0"));
  write_spec("nvidia.com/gpu", "GPU-0");
  CHECK(rig.kubelet.AwaitDevices(100));
  rig.plugin.Configure("driverAccess: auto\n");
  CHECK(logged("nvidia-cdi (auto"));
  CHECK(rig.kubelet.Admit("uid-3", "main", 10).response.cdi_devices(0).name() == "nvidia.com/gpu=GPU-0");
  rig.plugin.Configure("driverAccess: nvidia-runtime\n");
  CHECK(logged("nvidia-runtime (set)"));
  const Admitted pod = rig.kubelet.Admit("uid-4", "main", 10);
  CHECK(pod.response.cdi_devices_size() == 0);
  CHECK(pod.response.envs().at("NVIDIA_VISIBLE_DEVICES") == "GPU-0");
  CHECK_FALSE(pod.response.envs().contains("NVIDIA_DRIVER_CAPABILITIES"));  // the image's holds
  // No driver at all under driverRoot.
  rig.plugin.Configure("driverAccess: own\ncdiDir: " + rig.plugin.Path("cdi-2") +
                       "\ndriverRoot: " + rig.plugin.Path("none") + "\n");
  CHECK(rig.kubelet.AwaitDevices(0));
  CHECK(logged("no libcuda.so.1 lies under driverRoot"));
}

TEST_CASE("auto finds that NVIDIA's runtime made the plugin's own container") {
  Rig rig;
  const std::string library = rig.plugin.Path("libnvidia-ml.so.580.1");
  std::ofstream(library) << "";
  // The runtime's work before it starts a container that has NVIDIA_VISIBLE_DEVICES.
  const auto mounts = [&] {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(SLUICE_FAKE_NVML_LIBRARY, library.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      _exit(77);
    }
  };
  rig.plugin.WriteCards(PluginProcess::Cards(1));
  rig.plugin.Configure("driverAccess: auto\n");
  rig.kubelet.Start();
  rig.plugin.Start(mounts);
  if (!rig.kubelet.Await([&] { return rig.kubelet.registrations() > 0 || !rig.plugin.Running(); }) ||
      !rig.plugin.Running())
    SKIP("this user may not mount");
  REQUIRE(rig.kubelet.AwaitDevices(100));
  CHECK_THAT(rig.plugin.Log(), ContainsSubstring("it mounted " + library + " into this pod"));
  const Admitted pod = rig.kubelet.Admit("uid-1", "main", 10);
  CHECK(pod.response.envs().at("NVIDIA_VISIBLE_DEVICES") == "GPU-0");
}

TEST_CASE("a node with GPUs and without NVML says so; a node without GPUs does not") {
  Rig rig;
  rig.plugin.Configure("driverAccess: auto\nnvmlLibrary: " + rig.plugin.Path("no-nvml.so") + "\n");
  const auto state = [&] { return ReadFile(rig.plugin.Path("run/plugin.json")).value_or(""); };
  rig.kubelet.Start();
  rig.plugin.Start();
  REQUIRE(rig.kubelet.Await([&] { return state().find("no NVIDIA driver library") != std::string::npos; }));
  CHECK(state().find("PCI") == std::string::npos);
  const std::string card = rig.plugin.Path("sys/bus/pci/devices/0000:01:00.0");
  fs::create_directories(card);
  std::ofstream(card + "/vendor") << "0x10de\n";
  std::ofstream(card + "/class") << "0x030200\n";
  CHECK(rig.kubelet.Await([&] { return state().find("1 NVIDIA GPU(s) on its PCI bus") != std::string::npos; }));
  CHECK_THAT(state(), ContainsSubstring("driver.runtimeClassName"));
  CHECK(rig.kubelet.AwaitDevices(0));
}

TEST_CASE("cards whose NVML knows no memory size") {
  Rig rig;
  rig.plugin.WriteCards("card GPU-0 0 0 no-size\ncard GPU-1 1 0 size-v2\n");
  rig.plugin.Configure("");
  rig.kubelet.Start();
  rig.StartPlugin(100);
  CHECK(rig.kubelet.devices().contains("GPU-1::0"));
  CHECK_THAT(rig.plugin.Log(), ContainsSubstring("no-memory-size") && ContainsSubstring("GB10"));
}

}  // namespace
}  // namespace sluice::deviceplugin
