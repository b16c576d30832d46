// The built plugin and a kubelet in the test's process, with both accessible to the test.
#ifndef SLUICE_TEST_DEVICEPLUGIN_RIG_H_
#define SLUICE_TEST_DEVICEPLUGIN_RIG_H_

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "deviceplugin/host/files.h"
#include "test/deviceplugin/fake_kubelet.h"
#include "test/deviceplugin/plugin_process.h"

namespace sluice::deviceplugin {

struct Rig {
  TempDir dir;
  PluginProcess plugin{dir.path()};
  FakeKubelet kubelet{dir / "kubelet"};

  Rig() = default;
  Rig(int cards, const std::string& yaml) {
    plugin.WriteCards(PluginProcess::Cards(cards));
    plugin.Configure(yaml);
    kubelet.Start();
    StartPlugin(static_cast<size_t>(cards) * 100);
  }
  // Starts the first plugin, or one after a kill. Waits for the registration first, since until then kubelet may still
  // list the killed plugin's devices.
  void StartPlugin(size_t units) {
    const int before = kubelet.registrations();
    plugin.Start();
    const bool registered = kubelet.Await([&] { return kubelet.registrations() > before; });
    INFO(Log());
    REQUIRE(registered);
    REQUIRE(kubelet.AwaitDevices(units));
  }
  // The end of the plugin's log, for failure messages.
  std::string Log() const {
    const std::string log = plugin.Log();
    return log.size() > 6000 ? log.substr(log.size() - 6000) : log;
  }
  std::vector<std::string> Allocations() const {
    auto names = ListDir(plugin.Path("alloc"));
    return names.ok() ? *names : std::vector<std::string>{};
  }
};

inline std::string Text(const grpc::Status& status) { return status.ok() ? "ok" : status.error_message(); }

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_RIG_H_
