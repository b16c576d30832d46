#include "test/deviceplugin/plugin_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "deviceplugin/host/files.h"

namespace sluice::deviceplugin {

PluginProcess::PluginProcess(std::string root) : root_(std::move(root)) {
  for (const char* dir : {"kubelet/device-plugins", "src", "dev", "driver", "alloc"})
    std::filesystem::create_directories(Path(dir));
  std::ofstream(Path("src/libsluice.so")) << "shim";
  std::ofstream(Path("src/libsluice_engine.so")) << "engine";
  std::ofstream(Path("driver/libcuda.so.1")) << "libcuda";
  WriteCards("");
  Configure("");
}

PluginProcess::~PluginProcess() {
  if (pid_ > 0) Kill();
}

void PluginProcess::Configure(const std::string& yaml) {
  const std::pair<const char*, std::string> usual[] = {
      {"allocDir", Path("alloc")},
      {"libDir", Path("lib")},
      {"librarySource", Path("src")},
      {"cdiDir", cdi_dir_},
      {"cdiSearchDirs", "[" + cdi_dir_ + ", " + Path("nvidia-cdi") + "]"},
      {"stateFile", Path("run/plugin.json")},
      {"nvmlLibrary", SLUICE_FAKE_NVML_LIBRARY},
      {"sysRoot", Path("sys")},
      {"driverRoot", Path("driver")},
      {"deviceRoot", Path("dev")},
      {"driverAccess", "own"},
      {"logFormat", "json"},
      {"pollMs", "50"},
  };
  std::string text = yaml;
  for (const auto& [key, value] : usual) {
    if (yaml.find(std::string(key) + ":") == std::string::npos) text += std::string(key) + ": " + value + "\n";
  }
  if (!WriteFileAtomically(Path("config.yaml"), text, Durable::kNo).ok()) throw std::runtime_error("config.yaml");
}

long PluginProcess::ResidentFileKiB() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stol(line.substr(8));
  }
  throw std::runtime_error("no RssFile of process " + std::to_string(pid_));
}

void PluginProcess::WriteCards(const std::string& lines) {
  if (!WriteFileAtomically(Path("nvml"), lines, Durable::kNo).ok()) throw std::runtime_error("nvml");
}

std::string PluginProcess::Cards(int count, const std::string& flag) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    out += "card GPU-" + std::to_string(i) + " " + std::to_string(i) + " " + std::to_string(i % 2) + " " + flag + "\n";
  }
  return out;
}

void PluginProcess::Start(const std::function<void()>& in_child) { Spawn({}, in_child); }

int PluginProcess::CheckConfig() {
  Spawn({"--check-config"}, {});
  return Wait();
}

void PluginProcess::Spawn(const std::vector<std::string>& arguments, const std::function<void()>& in_child) {
  const std::string log = Path("plugin.log");
  std::vector<std::string> line = {program_.empty() ? SLUICE_PLUGIN_PROGRAM : program_, "--config", Path("config.yaml"),
                                   "--kubelet-dir", Path("kubelet/device-plugins")};
  line.insert(line.end(), arguments.begin(), arguments.end());
  line.insert(line.end(), arguments_.begin(), arguments_.end());
  std::vector<std::string> variables = variables_;
  variables.push_back("SLUICE_FAKE_NVML=" + Path("nvml"));
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  };
  const std::vector<char*> argv = pointers(line), envp = pointers(variables);
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (fd < 0) _exit(126);
  dup2(fd, 1);
  dup2(fd, 2);
  if (in_child) in_child();
  execve(argv[0], argv.data(), envp.data());
  _exit(127);
}

int PluginProcess::Wait() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (Running()) {
    if (std::chrono::steady_clock::now() > until) {
      std::cerr << "the plugin does not exit:\n";
      for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task")) {
        for (const char* file : {"comm", "wchan", "stack"})
          std::cerr << ReadFile(task.path() / file).value_or("") << (*file == 'w' ? "\n" : "");
      }
      kill(pid_, SIGKILL);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  int status = 0;
  if (pid_ > 0) waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void PluginProcess::Kill() {
  kill(pid_, SIGKILL);
  Wait();
}

int PluginProcess::Terminate() {
  kill(pid_, SIGTERM);
  return Wait();
}

bool PluginProcess::Running() {
  if (pid_ <= 0) return false;
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

std::string PluginProcess::Log() const {
  auto text = ReadFile(Path("plugin.log"));
  return text.ok() ? *text : "";
}

FakeAgent::FakeAgent(const std::string& run_dir) : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // The path may be longer than sun_path.
  const int dir = open(run_dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  const std::string path = "/proc/self/fd/" + std::to_string(dir) + "/agent.sock";
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  unlink((run_dir + "/agent.sock").c_str());
  const bool ok = bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd_, 16) == 0;
  close(dir);
  if (!ok) throw std::runtime_error("agent.sock in " + run_dir);
}

FakeAgent::~FakeAgent() { close(fd_); }

FakeAgents::FakeAgents(std::string alloc_dir) : alloc_dir_(std::move(alloc_dir)) {
  thread_ = std::thread([this] {
    while (!stopping_) {
      const auto names = ListDir(alloc_dir_);
      std::map<std::string, std::unique_ptr<FakeAgent>> now;
      for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) {
        const std::string dir = alloc_dir_ + "/" + name;
        if (!IsFile(dir + "/allocation.json")) continue;
        auto& agent = now[dir] = std::move(agents_[dir]);
        // The directory may be removed at any moment.
        try {
          if (!agent) agent = std::make_unique<FakeAgent>(dir);
        } catch (const std::runtime_error&) {
          now.erase(dir);
        }
      }
      agents_ = std::move(now);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
}

FakeAgents::~FakeAgents() {
  stopping_ = true;
  thread_.join();
}

}  // namespace sluice::deviceplugin
