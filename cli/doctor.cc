// doctor: checks this node or container, and says how to fix it.
#include <dlfcn.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

#include "cli/agent_connection.h"
#include "cli/commands.h"
#include "cli/doctor_dra.h"
#include "cli/doctor_placement.h"
#include "cli/doctor_processes.h"
#include "cli/paths.h"
#include "cli/report.h"
#include "sluice/names.h"
#include "sluice/version.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string run_dir, kubelet_dir = "/var/lib/kubelet/device-plugins";
};

// Values of cuda.h, so that the command line tool does not need the toolkit.
constexpr int kConcurrentManagedAccess = 89;
constexpr int kPageableUsesHostTables = 100;

void Driver(Report& report) {
  void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (lib == nullptr) {
    const char* why = dlerror();
    report.Bad(
        "driver: libcuda.so.1 was not found: " + std::string(why != nullptr ? why : ""),
        "install NVIDIA's driver (535 or newer); in a container, let the runtime or sluice's device plugin mount it");
    return;
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(lib, "cuInit"));
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(lib, "cuDriverGetVersion"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(lib, "cuDeviceGetCount"));
  const auto attribute = reinterpret_cast<int (*)(int*, int, int)>(dlsym(lib, "cuDeviceGetAttribute"));
  int n = 0, v = 0;
  if (!init || !version || !count || !attribute) {
    report.Bad("driver: libcuda.so.1 lacks cuInit, cuDriverGetVersion, cuDeviceGetCount or cuDeviceGetAttribute",
               "reinstall the driver");
    return;
  }
  const int r = init(0);
  if (r != 0) {
    report.Bad("driver: cuInit gives error " + std::to_string(r),
               "see nvidia-smi and the kernel's log; are /dev/nvidia* there and readable?");
    return;
  }
  version(&v);
  count(&n);
  report.Ok("driver: CUDA " + std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10) + ", " +
            std::to_string(n) + " GPU(s)");
  for (int i = 0; i < n; ++i) {
    int concurrent = 0, coherent = 0;
    attribute(&concurrent, kConcurrentManagedAccess, i);
    attribute(&coherent, kPageableUsesHostTables, i);
    if (concurrent == 0 || coherent != 0) {
      report.Warn(
          "GPU " + std::to_string(i) + ": " +
              (coherent != 0 ? "memory is coherent with the host's" : "no concurrent managed access (vGPU, WSL2)") +
              ": memory stays unmanaged and the budget is a hard limit",
          "nothing to fix; oversubscription needs a GPU with demand paging of its own");
    }
  }
}

void Library(Report& report) {
  const std::string shim = FindShim();
  if (shim.empty()) {
    report.Bad("library: not found: " + Join(ShimCandidates(), ", "), "build it, or install the package");
    return;
  }
  const fs::path engine = fs::path(shim).parent_path() / SLUICE_ENGINE_NAME;
  if (access(engine.c_str(), R_OK) != 0) {
    report.Bad("library: " + shim + " was found, its engine was not: " + engine.string(),
               "install both from one build");
    return;
  }
  report.Ok("library: " + shim);
}

void Agent(const Options& o, Report& report) {
  const std::string socket = SocketIn(o.run_dir);
  if (!AgentListens(socket)) {
    report.Warn("agent: no agent answers at " + socket,
                "start sluice-agent, or give its folder by --run-dir; `sluice run` starts its own");
    return;
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  v1::Status status;
  const grpc::Status r = Connect(socket)->GetStatus(&context, {}, &status);
  if (!r.ok()) {
    report.Bad("agent: " + socket + " answers with an error: " + r.error_message(),
               "restart sluice-agent; see its log");
    return;
  }
  if (status.agent_version() != SLUICE_VERSION) {
    report.Warn("agent: version " + status.agent_version() + ", this tool " SLUICE_VERSION,
                "finish the upgrade of the node");
  } else {
    report.Ok("agent: version " + status.agent_version() + ", " + std::to_string(status.gpus_size()) + " GPU(s), " +
              std::to_string(status.allocations_size()) + " allocation(s)");
  }
  if (status.gpus().empty()) report.Bad("agent: it sees no GPU", "its log names the library that it tried to load");
  if (!status.offer_problem().empty())
    report.Bad("plugin: " + status.offer_problem(), "the sentence names the setting");
  if (!status.config_error().empty())
    report.Warn("agent: configuration refused: " + status.config_error(),
                "correct the file; the agent reads it at once");
  for (const v1::Gpu& gpu : status.gpus()) report.Add(JudgeCgroup("", gpu));
  for (const v1::AllocationStatus& a : status.allocations()) {
    if (a.hook_state() == "not hooked") {
      report.Bad("allocation " + a.id() + ": a process uses the GPU without the hook",
                 "is LD_PRELOAD in the container unchanged, and is the program dynamically linked? does "
                 "/proc/PID/maps of the process name " SLUICE_SHIM_NAME "?");
    }
    if (a.hook_state() == "unproven") {
      report.Warn("allocation " + a.id() + ": unproven: " + a.hook_reason(),
                  "is the process stopped? else it, or a library of it, uses the GPU beside the hook");
    }
    report.Add(JudgeNewerEntries("allocation " + a.id(), a));
    report.Add(JudgeSize("allocation " + a.id(), a));
  }
}

// The output of a command; empty: it failed.
std::string OutputOf(const char* command) {
  FILE* pipe = popen(command, "r");  // NOLINT(bugprone-command-processor): the commands are literals below
  if (pipe == nullptr) return "";
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, n);
  return pclose(pipe) == 0 ? text : "";
}

bool HasKubectl() {
  // NOLINTNEXTLINE(bugprone-command-processor): a literal
  return std::system("command -v kubectl >/dev/null 2>&1") == 0;
}

void Cluster(const Options& o, Report& report) {
  std::error_code ec;
  if (!fs::is_directory(o.kubelet_dir, ec)) {
    report.Skip("plugin, webhook: not a Kubernetes node (no " + o.kubelet_dir + "), not checked");
    return;
  }
  bool found = false;
  for (fs::directory_iterator it(o.kubelet_dir, ec), end; !ec && it != end; it.increment(ec)) {
    found |= it->path().filename().string().starts_with("sluice");
  }
  const std::vector<Finding> dra = JudgeDraSockets(o.kubelet_dir, AgentListens);
  report.Add(dra);
  if (found) {
    report.Ok("plugin: its socket is in " + o.kubelet_dir);
  } else if (dra.empty()) {
    report.Bad("plugin: no socket of sluice in " + o.kubelet_dir,
               "is the DaemonSet's pod running on this node? kubectl get pods -o wide");
  }
  if (!HasKubectl()) {
    report.Skip("webhook: no kubectl here, not checked");
    return;
  }
  // By the webhook's own name: the configuration's is a choice of the chart's user.
  if (!OutputOf("kubectl get mutatingwebhookconfigurations -o jsonpath='{.items[*].webhooks[*].name}' 2>/dev/null | "
                "grep -w mutate.sluice.dev")
           .empty()) {
    report.Ok("webhook: registered");
  } else {
    report.Warn("webhook: kubectl shows no mutating webhook of sluice",
                "helm status sluice; or kubectl may not see the cluster from here");
  }
}

void Placement(Report& report) {
  if (!HasKubectl()) {
    report.Skip("placement: no kubectl here, not checked");
    return;
  }
  const std::string pods = OutputOf("kubectl get pods -A -o json --request-timeout=20s 2>/dev/null");
  const std::string nodes = OutputOf("kubectl get nodes -o json --request-timeout=20s 2>/dev/null");
  if (pods.empty() || nodes.empty()) {
    report.Skip("placement: kubectl may not list pods and nodes from here, not checked");
    return;
  }
  report.Add(JudgePlacement(pods, nodes, std::time(nullptr)));
}

bool Mapped(const char* name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

// In a container of sluice, or beside a socket that $SLUICE_SOCKET names: is this process hooked?
void Container(const std::string& socket_path, Report& report) {
  const char* preload = std::getenv("LD_PRELOAD");
  const bool named = preload != nullptr && std::strstr(preload, SLUICE_SHIM_NAME) != nullptr;
  const char* disable = std::getenv(SLUICE_ENV_DISABLE);
  if (disable != nullptr && std::strcmp(disable, "1") == 0) {
    report.Warn("hook: switched off by " SLUICE_ENV_DISABLE "=1", "unset " SLUICE_ENV_DISABLE);
  }
  if (!named) {
    report.Bad("hook: LD_PRELOAD does not name " SLUICE_SHIM_NAME,
               "the entry point or a shell profile removed it, or the pod was admitted without the webhook; see the "
               "pod's annotation " SLUICE_DOMAIN "/" SLUICE_KEY_INJECTED);
  } else if (!Mapped(SLUICE_SHIM_NAME)) {
    report.Bad("hook: LD_PRELOAD names it, but it is not loaded into this process: " + std::string(preload),
               "is the file there and readable? a static or setuid program ignores LD_PRELOAD");
  } else {
    report.Ok("hook: " SLUICE_SHIM_NAME " is loaded into this process, and so into others of this container");
  }
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  std::strncpy(addr.sun_path, socket_path.c_str(), sizeof(addr.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&addr), sizeof(addr)) == 0) {
    report.Ok("agent: answers at " + socket_path);
  } else {
    report.Bad("agent: " + socket_path + ": " + std::strerror(errno),
               errno == ENOENT ? "is the agent's pod running on this node? the last budget stays in force meanwhile"
                               : "see the agent's log on the node");
  }
  if (fd >= 0) close(fd);
}

void Doctor(const Options& o) {
  Report report;
  const char* socket = std::getenv(SLUICE_ENV_SOCKET);
  std::error_code ec;
  const bool container = socket != nullptr || fs::exists(SLUICE_CONTAINER_RUN_DIR, ec);
  std::printf("sluice " SLUICE_VERSION "%s\n", container ? ", inside a container or under sluice run" : "");
  if (container) Container(socket != nullptr ? socket : SLUICE_CONTAINER_SOCKET, report);
  Driver(report);
  Library(report);
  if (!container) {
    Agent(o, report);
    Cluster(o, report);
    Placement(report);
  }
  throw CLI::RuntimeError(report.bad() ? 1 : 0);
}

}  // namespace

void AddDoctorCommand(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("doctor", "check driver, library, agent, plugin and webhook, and say how to fix them");
  AddRunDirOption(*command, &o->run_dir);
  command->add_option("--kubelet-dir", o->kubelet_dir, "kubelet's folder of device plugins");
  command->callback([o] { Doctor(*o); });
}

}  // namespace sluice::cli
