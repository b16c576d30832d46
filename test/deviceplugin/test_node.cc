#include "test/deviceplugin/test_node.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "absl/strings/escaping.h"
#include "deviceplugin/host/files.h"
#include "sluice/names.h"
#include "test/deviceplugin/other_plugin.h"

namespace sluice::deviceplugin {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class FakeNode final : public TestNode {
 public:
  FakeNode(int cards, const std::string& yaml) : kubelet_(dir / "kubelet") {
    plugin = std::make_unique<PluginProcess>(dir.path());
    plugin->WriteCards(PluginProcess::Cards(cards));
    plugin->Configure(yaml);
    kubelet_.Start();
    agents_.emplace(plugin->Path("alloc"));
    plugin->Start();
  }

  bool AwaitUnits(size_t healthy, size_t unhealthy) override { return kubelet_.AwaitDevices(healthy, unhealthy); }

  void RestartKubelet() override {
    kubelet_.Stop();
    kubelet_.Start();
  }

  AdmittedPod Admit(const std::string& pod, const std::vector<ContainerOrder>& containers) override {
    AdmittedPod out;
    std::set<std::string> reusable;
    for (const ContainerOrder& order : containers) {
      Admitted admitted = kubelet_.Admit(pod, order.name, order.units, reusable);
      if (!admitted.status.ok()) {
        Delete(pod);
        return {admitted.status.error_message(), {}};
      }
      for (const auto& id : admitted.ids) order.init ? void(reusable.insert(id)) : void(reusable.erase(id));
      out.containers.push_back(std::move(admitted));
    }
    for (const Admitted& admitted : out.containers) {
      if (const auto status = kubelet_.PreStart(admitted.ids); !status.ok()) out.refusal = status.error_message();
    }
    last_[pod] = out.containers.back().ids;
    return out;
  }

  std::string Restart(const std::string& pod) override { return kubelet_.PreStart(last_.at(pod)).error_message(); }
  void Delete(const std::string& pod) override { kubelet_.Delete(pod); }
  void OfferFromOtherPlugin(const std::string& resource, const std::vector<std::string>& ids) override {
    kubelet_.OfferFromOtherPlugin(resource, ids);
  }

 private:
  FakeKubelet kubelet_;
  std::optional<FakeAgents> agents_;
  std::map<std::string, std::vector<std::string>> last_;  // units of each pod's last container
};

// Uses kubectl, like a person. $SLUICE_CLUSTER is test/cluster/cluster, $SLUICE_CONTRACT_NAMESPACE a namespace of its
// own.
class ClusterNode final : public TestNode {
 public:
  ClusterNode(int cards, const std::string& yaml) {
    fs::create_directory_symlink("/var/lib/kubelet", dir / "kubelet");
    plugin = std::make_unique<PluginProcess>(dir.path());
    plugin->WriteCards(PluginProcess::Cards(cards));
    plugin->UseCdiDir(kCdiDir);
    RemoveSpecs();
    // Device nodes without a driver behind them.
    for (int i = 0; i < cards; ++i) {
      if (mknod(plugin->Path("dev/nvidia" + std::to_string(i)).c_str(), S_IFCHR | 0666, makedev(195, 200 + i)) != 0)
        throw std::runtime_error("no device nodes can be made here");
    }
    plugin->Configure(yaml);
    agents_.emplace(plugin->Path("alloc"));
    plugin->Start();
  }

  ~ClusterNode() override {
    Kubectl("delete pods --all --wait=true --timeout=60s");
    // The next case's node must start without state of this one.
    plugin->Terminate();
    AwaitUnits(0, 0);
    RemoveSpecs();
  }

  bool AwaitUnits(size_t healthy, size_t unhealthy) override {
    return Await([&] {
      const Json status = Get("node " + Setting("SLUICE_CLUSTER_NODE")).value("status", Json::object());
      const long allocatable = Count(status, "allocatable"), capacity = Count(status, "capacity");
      // Kubelet keeps the capacity of a plugin that has stopped.
      return allocatable == static_cast<long>(healthy) &&
             (healthy == 0 || capacity == static_cast<long>(healthy + unhealthy));
    });
  }

  void RestartKubelet() override {
    if (std::system((Setting("SLUICE_CLUSTER") + " restart kubelet >/dev/null 2>&1").c_str()) != 0)
      throw std::runtime_error("cluster restart kubelet");
  }

  AdmittedPod Admit(const std::string& pod, const std::vector<ContainerOrder>& containers) override {
    Json init = Json::array(), regular = Json::array();
    for (const ContainerOrder& order : containers) {
      // These tests have no real library, and a pod's own variables take precedence.
      Json container = {{"name", order.name},
                        {"image", Setting("SLUICE_CLUSTER_BASE")},
                        {"imagePullPolicy", "Never"},
                        {"command", {"bash", "-c", order.init ? "true" : "trap 'exit 0' TERM; sleep 100000 & wait"}},
                        {"env", {{{"name", "LD_PRELOAD"}, {"value", ""}}}},
                        {"resources", {{"limits", {{SLUICE_RESOURCE, std::to_string(order.units)}}}}}};
      if (order.sidecar) container["restartPolicy"] = "Always";
      (order.init || order.sidecar ? init : regular).push_back(container);
    }
    const Json spec = {{"apiVersion", "v1"},
                       {"kind", "Pod"},
                       {"metadata", {{"name", pod}}},
                       {"spec",
                        {{"terminationGracePeriodSeconds", 0},
                         // Bypasses the scheduler, so that kubelet decides.
                         {"nodeName", Setting("SLUICE_CLUSTER_NODE")},
                         {"initContainers", init},
                         {"containers", regular}}}};
    const std::string file = dir / "pod.json";
    if (!WriteFileAtomically(file, spec.dump(), Durable::kNo).ok()) throw std::runtime_error(file);
    Kubectl("apply -f " + file);
    AdmittedPod out;
    Json state;
    const bool settled = Await([&] {
      state = Get("pod " + pod);
      const std::string phase = state.value("/status/phase"_json_pointer, "");
      return phase == "Running" || phase == "Failed";
    });
    if (!settled || state["status"]["phase"] == "Failed") {
      out.refusal =
          settled ? state["status"].value("message", "no message") : "did not run: " + Kubectl("describe pod " + pod);
      return out;
    }
    const std::string uid = state["metadata"]["uid"];
    const auto checkpoint = ReadFile("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint");
    const Json entries = Json::parse(checkpoint.ok() ? *checkpoint : "{}")["Data"]["PodDeviceEntries"];
    for (const ContainerOrder& order : containers) {
      for (const Json& entry : entries) {
        if (entry["PodUID"] != uid || entry["ContainerName"] != order.name) continue;
        Admitted admitted;
        for (const auto& [numa, ids] : entry["DeviceIDs"].items())
          admitted.ids.insert(admitted.ids.end(), ids.begin(), ids.end());
        std::sort(admitted.ids.begin(), admitted.ids.end());
        std::string bytes;
        if (!absl::Base64Unescape(entry["AllocResp"].get<std::string>(), &bytes) ||
            !admitted.response.ParseFromString(bytes)) {
          throw std::runtime_error("kubelet's checkpoint");
        }
        out.containers.push_back(std::move(admitted));
      }
    }
    return out;
  }

  std::string Restart(const std::string& pod) override {
    const auto restarts = [&] {
      return Get("pod " + pod).value("/status/containerStatuses/0/restartCount"_json_pointer, 0);
    };
    const int before = restarts();
    // A kubelet that has just started does not serve yet.
    Await([&] { return Kubectl("exec " + pod + " -- bash -c 'echo done; kill 1'").find("done") != std::string::npos; });
    std::string refusal;
    const bool settled = Await([&] {
      const Json status = Get("pod " + pod).value("/status/containerStatuses/0"_json_pointer, Json::object());
      if (status.value("restartCount", 0) > before && status["state"].contains("running")) return true;
      refusal = Kubectl("describe pod " + pod);
      if (refusal.find("sluice refuses") == std::string::npos) refusal.clear();
      return !refusal.empty();
    });
    return settled ? refusal : "the container did not come back: " + Kubectl("describe pod " + pod);
  }

  void Delete(const std::string& pod) override { Kubectl("delete pod " + pod + " --wait=true --timeout=60s"); }

  void OfferFromOtherPlugin(const std::string& resource, const std::vector<std::string>& ids) override {
    other_plugin_.emplace(plugin->Path("kubelet/device-plugins"), resource, ids);
  }

 private:
  // The folder that containerd reads.
  static constexpr char kCdiDir[] = "/var/run/cdi";

  // The specs name device nodes of a node that no longer exists.
  static void RemoveSpecs() {
    const auto names = ListDir(kCdiDir);
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) {
      if (name.starts_with("sluice.dev-gpu_GPU-")) fs::remove(std::string(kCdiDir) + "/" + name);
    }
  }

  static std::string Setting(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set: start this by contract_cluster");
    return value;
  }

  static long Count(const Json& status, const char* list) {
    return std::atol(status.value(list, Json::object()).value(SLUICE_RESOURCE, "0").c_str());
  }

  static std::string Kubectl(const std::string& arguments) {
    const std::string command = Setting("SLUICE_CLUSTER") + " kubectl -n " + Setting("SLUICE_CONTRACT_NAMESPACE") +
                                " " + arguments + " 2>/dev/null";
    std::string out;
    FILE* pipe = popen(command.c_str(), "re");
    char buffer[4096];
    for (size_t n; pipe != nullptr && (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
    if (pipe != nullptr) pclose(pipe);
    return out;
  }

  static Json Get(const std::string& what) {
    Json json = Json::parse(Kubectl("get " + what + " -o json"), nullptr, false);
    return json.is_object() ? json : Json::object();
  }

  std::optional<FakeAgents> agents_;
  std::optional<OtherPlugin> other_plugin_;
};

}  // namespace

std::unique_ptr<TestNode> TestNode::Make(int cards, const std::string& yaml) {
  std::unique_ptr<TestNode> node;
  const char* kind = std::getenv("SLUICE_CONTRACT_NODE");
  if (kind != nullptr && std::string(kind) == "cluster") {
    node = std::make_unique<ClusterNode>(cards, yaml);
  } else {
    node = std::make_unique<FakeNode>(cards, yaml);
  }
  if (!node->AwaitUnits(static_cast<size_t>(cards) * SLUICE_UNITS_PER_GPU))
    throw std::runtime_error("kubelet never saw the cards\n" + node->Log());
  return node;
}

bool TestNode::Await(const std::function<bool()>& predicate) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!predicate()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<std::string> TestNode::Allocations() const {
  auto names = ListDir(plugin->Path("alloc"));
  return names.ok() ? *names : std::vector<std::string>{};
}

int TestNode::Registrations() const {
  static constexpr std::string_view kAccepted = R"("msg":"registration","result":"ok")";
  const std::string log = plugin->Log();
  int count = 0;
  for (size_t at = 0; (at = log.find(kAccepted, at)) != std::string::npos; ++at) ++count;
  return count;
}

std::string TestNode::Log() const {
  const std::string log = plugin->Log();
  return log.size() > 6000 ? log.substr(log.size() - 6000) : log;
}

}  // namespace sluice::deviceplugin
