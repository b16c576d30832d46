// The built plugin and a kubelet in the test's process, with everything of both within the test's reach.
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
    plugin.Node(PluginProcess::Cards(cards));
    plugin.Configure(yaml);
    kubelet.Start();
    StartPlugin(static_cast<size_t>(cards) * 100);
  }
  // The first one, or one after a death: until it has registered, kubelet may still show the dead one's devices.
  void StartPlugin(size_t units) {
    const int before = kubelet.registrations();
    plugin.Start();
    const bool registered = kubelet.Await([&] { return kubelet.registrations() > before; });
    INFO(Log());
    REQUIRE(registered);
    REQUIRE(kubelet.AwaitDevices(units));
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

inline std::string Text(const grpc::Status& status) { return status.ok() ? "ok" : status.error_message(); }

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_RIG_H_
