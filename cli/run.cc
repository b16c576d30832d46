// run: runs a program on a fraction of a GPU.
#include <dirent.h>
#include <grpcpp/grpcpp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "cli/agent_connection.h"
#include "cli/child.h"
#include "cli/commands.h"
#include "cli/paths.h"
#include "cli/text.h"
#include "cli/visible_devices.h"
#include "common/loader_paths.h"
#include "common/settings/settings.h"
#include "sluice/names.h"
#include "sluice/wire.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace sluice::cli {
namespace {

constexpr int kOwnFailure = 125;  // sluice itself failed; the same status as env, timeout and docker use

struct Options {
  std::map<std::string, std::string> values;  // by key of the settings table
  std::set<settings::Id> by_variable;         // given by a variable, not by a flag
  std::string run_dir, gpu = "auto", gpus, backend, on_error;
  std::vector<std::string> misplaced;  // words of a program without -- before it
  bool run_dir_given = false;
  bool own_agent = false;
};

// An agent for this one program. It ends with this process, even if that is killed.
class OwnAgent {
 public:
  ~OwnAgent() {
    if (pid_ > 0) {
      kill(pid_, SIGTERM);
      waitpid(pid_, nullptr, 0);
    }
    std::error_code ec;
    if (!dir_.empty()) std::filesystem::remove_all(dir_, ec);
  }
  std::string Start(const std::string& nvml) {
    std::string error;
    const std::optional<std::string> folder = MakeRunFolder(error);
    if (!folder) Fail(kOwnFailure, error);
    dir_ = *folder;
    const std::string agent = BinDir() + "/sluice-agent";
    std::vector<std::string> args = {
        agent, "--run-dir", dir_, "--alloc-dir", dir_ + "/alloc", "--end-with", std::to_string(getpid()), "--quiet"};
    if (!nvml.empty()) args.insert(args.end(), {"--nvml", nvml});
    std::vector<std::string> environment;
    for (char** e = environ; *e != nullptr; ++e) {
      if (std::strncmp(*e, "LD_PRELOAD=", 11) != 0) environment.emplace_back(*e);
    }
    pid_ = Spawn(args, environment, /*own_group=*/true);
    if (pid_ < 0) Fail(kOwnFailure, agent + ": " + std::strerror(errno));
    const std::string socket = SocketIn(dir_);
    for (int i = 0; i < 1000; ++i) {
      if (AgentListens(socket)) return socket;
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = -1;
        Fail(kOwnFailure, "the agent that was started for this program ended at once; its error is above");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    Fail(kOwnFailure, "the agent that was started for this program does not answer at " + socket);
  }

 private:
  pid_t pid_ = -1;
  std::string dir_;
};

// Takes variables of the shell where no flag is given: in the program the agent's values would override them.
void TakeVariables(Options* o) {
  const auto given = [o](const char* key) { return o->values.contains(key); };
  const bool sized = given(SLUICE_KEY_GPU_FRACTION) || given(SLUICE_KEY_GPU_MEMORY);
  for (const settings::Key& key : settings::Table()) {
    const bool size = key.id == settings::Id::kGpuFraction || key.id == settings::Id::kGpuMemory;
    const char* value = key.flag.empty() ? nullptr : std::getenv(std::string(key.variable).c_str());
    if (value == nullptr || *value == '\0' || o->values.contains(std::string(key.name)) || (size && sized)) continue;
    o->values[std::string(key.name)] = value;
    o->by_variable.insert(key.id);
  }
}

settings::Settings Check(const Options& o) {
  settings::Settings s;
  for (const auto& [name, value] : o.values) {
    const settings::Key& key = *settings::Find(name);
    const std::string error = settings::Set(s, key, value, o.by_variable.contains(key.id) ? key.variable : key.flag);
    if (!error.empty()) Fail(2, error);
  }
  const auto conflicts = settings::Conflicts(s, "--");
  if (!conflicts.empty()) Fail(2, conflicts.front());
  if (!o.backend.empty() && o.backend != "managed")
    Fail(2, "--backend: '" + o.backend + "' is not accepted; accepted: managed");
  if (o.gpu != "auto" && o.gpu != "sim" && (!o.gpu.starts_with("GPU-") || o.gpu != Printable(o.gpu))) {
    Fail(2, "--gpu: '" + Printable(o.gpu) + "' is not accepted; accepted: auto, sim, a GPU's UUID (GPU-...)");
  }
  if (!o.on_error.empty() && o.on_error != "run" && o.on_error != "stop") {
    Fail(2, "--on-error: '" + o.on_error + "' is not accepted; accepted: run, stop");
  }
  return s;
}

// How many GPUs the program gets: --gpus, or the whole GPUs of --fraction.
uint32_t GpuCount(const Options& o, uint32_t percent) {
  const uint32_t whole = percent > 100 ? percent / 100 : 1;
  if (o.gpus.empty()) return whole;
  uint32_t count = 0;
  const auto [end, error] = std::from_chars(o.gpus.data(), o.gpus.data() + o.gpus.size(), count);
  if (error != std::errc() || end != o.gpus.data() + o.gpus.size() || count < 1 || count > SLUICE_MAX_GPUS) {
    Fail(2, "--gpus: '" + Printable(o.gpus) + "' is not accepted; accepted: a whole number from 1 to " +
                std::to_string(SLUICE_MAX_GPUS));
  }
  if (whole > 1) {
    Fail(2, "--gpus: '" + o.gpus + "' beside --fraction " + settings::FormatFraction(percent) +
                " is not accepted; accepted: --fraction up to 1, which is of each GPU");
  }
  return count;
}

// `visible` restricts the GPUs among which the agent chooses.
v1::CreateAllocationRequest Request(const Options& o, const settings::Settings& s, const std::string& program,
                                    const VisibleDevices& visible, const char* visible_text) {
  v1::CreateAllocationRequest request;
  request.set_name(Printable(std::filesystem::path(program).filename().native()));
  request.set_owner(getpid());
  for (const auto& [key, value] : o.values) (*request.mutable_settings())[key] = value;
  const uint32_t percent = s.gpu_memory ? 0 : s.gpu_percent.value_or(100);
  const uint32_t gpus = GpuCount(o, percent);
  const std::string by = o.gpus.empty() ? "--fraction" : "--gpus";
  if (gpus > 1 && o.gpu != "auto" && o.gpu != "sim") {
    Fail(2,
         "--gpu: '" + o.gpu + "' beside " + by + " " + std::to_string(gpus) + " is not accepted; accepted: auto, sim");
  }
  const std::vector<std::string> uuids = RequestedGpus(visible, visible_text, o.gpu, gpus, by);
  for (uint32_t i = 0; i < gpus; ++i) {
    v1::GpuShare* share = request.add_gpus();
    share->set_units(percent > 100 ? 100 : percent);
    if (!uuids.empty()) share->set_uuid(uuids[i]);
  }
  return request;
}

// The environment with these variables set or replaced. An empty value removes the variable.
std::vector<std::string> Environment(const std::map<std::string, std::string>& changed) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    char* eq = std::strchr(*e, '=');
    if (eq != nullptr && changed.contains(std::string(*e, static_cast<size_t>(eq - *e)))) continue;
    out.emplace_back(*e);
  }
  for (const auto& [name, value] : changed) {
    if (!value.empty()) out.push_back(name + "=" + value);
  }
  return out;
}

// The value of a variable of the loader's with our library or folder in front.
std::string Loading(LoaderPaths& paths, const char* variable, const std::string& path) {
  std::string error;
  const std::optional<std::string> fit = paths.Fit(path, error);
  if (!fit) Fail(kOwnFailure, error);
  return PrependedTo(variable, *fit);
}

int Run(Options o, const std::vector<std::string>& program) {
  TakeVariables(&o);
  const settings::Settings s = Check(o);
  if (!o.misplaced.empty())
    Fail(2, "run: '" + o.misplaced.front() + "' has no -- before it; accepted: sluice run [flags] -- CMD...");
  if (program.empty()) Fail(2, "run: no program is given; accepted: sluice run [flags] -- CMD...");
  const std::string shim = FindShim();
  if (shim.empty()) Fail(kOwnFailure, "the hook library was not found: " + Join(ShimCandidates(), ", "));
  const bool sim = o.gpu == "sim";
  const std::string sim_nvml = SimGpuDir() + "/libnvidia-ml.so.1";
  if (sim && access(sim_nvml.c_str(), R_OK) != 0) {
    Fail(kOwnFailure, "--gpu sim: the simulated driver was not found: " + sim_nvml);
  }

  LoaderPaths paths;
  OwnAgent own;
  std::string socket = SocketIn(o.run_dir);
  // The node's agent serves real GPUs. It serves a simulated one only where its folder was given.
  const bool node = !o.own_agent && (!sim || o.run_dir_given) && AgentListens(socket);
  if (o.run_dir_given && !o.own_agent && !node) {
    Fail(kOwnFailure, "no agent answers at " + socket + "; start sluice-agent --run-dir " + o.run_dir +
                          ", or leave out --run-dir and SLUICE_RUN_DIR: then the program gets an agent of its own");
  }
  if (!node) socket = own.Start(sim ? sim_nvml : "");

  auto stub = Connect(socket);
  // The user's choice of GPUs holds: it says which of the node's are requested, or that the program sees none.
  std::vector<std::string> node_gpus;
  v1::Status status;
  grpc::ClientContext status_context;
  if (stub->GetStatus(&status_context, {}, &status).ok()) {
    for (const v1::Gpu& g : status.gpus()) node_gpus.push_back(g.uuid());
  }
  const char* const visible_text = std::getenv("CUDA_VISIBLE_DEVICES");
  const VisibleDevices visible = ReadVisibleDevices(visible_text, node_gpus);
  grpc::ClientContext context;
  auto stream = stub->CreateAllocation(&context, Request(o, s, program.front(), visible, visible_text));
  v1::Allocation allocation;
  if (!stream->Read(&allocation)) {
    const grpc::Status result = stream->Finish();
    const bool caller = result.error_code() == grpc::StatusCode::INVALID_ARGUMENT;
    // The agent has no GPU at all. A simulated one needs an agent of its own, so not where a folder was given.
    const bool simulate = result.error_code() == grpc::StatusCode::FAILED_PRECONDITION && !o.run_dir_given &&
                          access(sim_nvml.c_str(), R_OK) == 0;
    Fail(caller ? 2 : kOwnFailure, result.error_message() + (simulate ? "; --gpu sim runs it on a simulated GPU" : ""));
  }

  std::map<std::string, std::string> environment;
  environment[SLUICE_ENV_GPU_FRACTION] = environment[SLUICE_ENV_GPU_MEMORY] = "";  // at most one of them is set
  for (const auto& [name, value] : o.values) environment[std::string(settings::Find(name)->variable)] = value;
  environment["LD_PRELOAD"] = Loading(paths, "LD_PRELOAD", shim);
  environment[SLUICE_ENV_SOCKET] = allocation.directory() + "/" SLUICE_SOCKET_NAME;
  if (!o.backend.empty()) environment[SLUICE_ENV_BACKEND] = o.backend;
  if (!o.on_error.empty()) environment[SLUICE_ENV_ON_ERROR] = o.on_error;
  if (sim) environment["LD_LIBRARY_PATH"] = Loading(paths, "LD_LIBRARY_PATH", SimGpuDir());
  // On a node with further GPUs, CUDA must see the allocated ones only.
  if (!visible.hides_all && status.gpus_size() > allocation.gpus_size()) {
    std::vector<std::string> uuids;
    for (const v1::GpuShare& g : allocation.gpus()) uuids.push_back(g.uuid());
    environment["CUDA_VISIBLE_DEVICES"] = Join(uuids, ",");
  }
  const pid_t pid = Spawn(program, Environment(environment), /*own_group=*/false);
  if (pid < 0) {
    const int error = errno;
    std::fprintf(stderr, "sluice: %s: %s\n", program.front().c_str(), std::strerror(error));
    context.TryCancel();
    stream->Finish();
    return error == ENOENT ? 127 : 126;
  }
  const int result = WaitForwarding(pid);
  context.TryCancel();
  stream->Finish();
  return result;
}

}  // namespace

std::vector<std::string>& ProgramArguments() {
  static std::vector<std::string> arguments;
  return arguments;
}

void AddRunCommand(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("run", "run a program on a fraction of a GPU: sluice run --fraction 0.5 -- python train.py");
  for (const settings::Key& key : settings::Table()) {
    if (key.flag.empty()) continue;
    const std::string name(key.name);
    command->add_option_function<std::string>(
        std::string(key.flag), [o, name](const std::string& value) { o->values[name] = value; },
        std::string(key.meaning) + "; accepted: " + std::string(key.accepted) +
            (key.default_text.empty() ? "" : "; default: " + std::string(key.default_text)));
  }
  command->add_option("--backend", o->backend, "how memory is moved: managed");
  command->add_option("--on-error", o->on_error,
                      "where the hook's engine cannot be loaded: run (unhooked, default), stop");
  command->add_option("--gpus", o->gpus,
                      "number of GPUs of this node, neighbours first; --fraction or --memory is of each; default: 1");
  command->add_option("--gpu", o->gpu, "auto: the GPU with the most free units; sim: a simulated one; or a UUID");
  AddRunDirOption(*command, &o->run_dir);
  command->add_option("CMD", o->misplaced, "the program and its arguments, after --");
  command->add_flag("--own-agent", o->own_agent, "start an agent for this program, even where the node has one");
  command->callback([o, command] {
    o->run_dir_given = command->get_option("--run-dir")->count() > 0;
    BlockSignals();
    throw CLI::RuntimeError(Run(*o, ProgramArguments()));
  });
}

}  // namespace sluice::cli
