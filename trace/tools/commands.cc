#include "commands.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/loader_paths.h"
#include "common/read_file.h"
#include "common/settings/settings.h"
#include "explain.h"
#include "sluice/names.h"
#include "trace/reader.h"

namespace {

namespace fs = std::filesystem;

[[noreturn]] void Quit(const std::string& text, int status) {
  fprintf(stderr, "sluice: %s\n", text.c_str());
  throw CLI::RuntimeError(status);
}

struct Command {
  std::vector<std::string> arguments;
  std::map<std::string, std::string> variables;
  sluice::LoaderPaths paths;  // its links last until the command has ended
};

// The folder that holds bin and lib.
fs::path Prefix() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return self.parent_path().parent_path();
}

fs::path Existing(const fs::path& path, const char* name) {
  if (!fs::exists(path)) Quit(std::string(name) + " was not found at " + path.string(), 1);
  return path;
}

// Sets a variable of the loader's to our library or folder, before the value that it has.
void Prepend(Command& command, const char* variable, const fs::path& path) {
  std::string error;
  const std::optional<std::string> fit = command.paths.Fit(path.string(), error);
  if (!fit) Quit(error, 1);
  command.variables[variable] = sluice::PrependedTo(variable, *fit);
}

void Preload(Command& command) {
  Prepend(command, "LD_PRELOAD", Existing(Prefix() / "lib" / SLUICE_SHIM_NAME, "the hook library"));
}

void UseSimulatedGpu(Command& command) {
  const fs::path folder = Prefix() / "lib" / "simgpu";
  Existing(folder / "libcuda.so.1", "the simulated GPU");
  Prepend(command, "LD_LIBRARY_PATH", folder);
}

// Runs the command to its end and returns its status as a shell does. Signals that a terminal sends to both processes
// are left to the program.
int Run(const Command& command) {
  signal(SIGINT, SIG_IGN);
  signal(SIGQUIT, SIG_IGN);
  fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) Quit(std::string("fork: ") + strerror(errno), 1);
  if (child == 0) {
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    for (const auto& [name, value] : command.variables) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    arguments.reserve(command.arguments.size() + 1);
    for (const std::string& argument : command.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    fprintf(stderr, "sluice: %s: %s\n", arguments[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct RecordOptions {
  std::string file, gpu = "auto";
  int level = 12;
  std::vector<std::string> command;
};

// Checks before the run, not after an hour of it. `name`: the option as the caller wrote it.
void MustBeWritable(const std::string& name, const fs::path& path) {
  FILE* probe = fopen(path.c_str(), "wb");
  if (probe == nullptr) Quit(name + ": " + strerror(errno), 2);
  fclose(probe);
}

// The process with the largest recording is the program; the files of the others (launchers, workers) keep their
// process id in their names.
void Pack(const RecordOptions& options, const fs::path& raw, int status) {
  std::vector<std::pair<uintmax_t, fs::path>> made;
  const fs::path folder = raw.has_parent_path() ? raw.parent_path() : fs::path(".");
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(raw.filename().string(), 0) == 0) made.emplace_back(entry.file_size(ignored), entry.path());
  }
  if (made.empty()) {
    Quit("nothing was recorded: the program made no CUDA call, or the hook is inert in it (see sluice doctor)",
         status != 0 ? status : 1);
  }
  std::sort(made.rbegin(), made.rend());
  for (size_t i = 0; i < made.size(); ++i) {
    const std::string to = i == 0 ? options.file : options.file + made[i].second.string().substr(raw.string().size());
    const absl::Status packed = sluice::trace::Compress(made[i].second.string(), to, options.level);
    if (!packed.ok())
      Quit(std::string(packed.message()) + "; the raw recording is kept: " + made[i].second.string(), 1);
    fs::remove(made[i].second, ignored);
    const absl::StatusOr<sluice::trace::Trace> trace = sluice::trace::Load(to);
    if (!trace.ok()) Quit(std::string(trace.status().message()), 1);
    fprintf(stderr, "sluice: recorded %s: %zu launches%s\n", to.c_str(), trace->launches.size(),
            trace->complete ? "" : ", cut off: the program ended without running its exit handlers");
  }
}

void Record(const RecordOptions& options) {
  Command command;
  command.arguments = options.command;
  Preload(command);
  if (options.gpu == "sim") UseSimulatedGpu(command);
  const fs::path raw = options.file + ".raw";
  if (std::string error; !sluice::MayBeReplaced(options.file, error)) Quit("-o " + error, 2);
  MustBeWritable("-o " + options.file, raw);
  fs::remove(raw);
  command.variables[SLUICE_ENV_RECORD] = raw.string();
  const int status = Run(command);
  Pack(options, raw, status);
  throw CLI::RuntimeError(status);
}

struct ReplayOptions {
  std::string file, gpu = "auto", profile, timeline;
  std::map<std::string, std::string> settings;  // annotation key -> value
  int steps = 0, warm_up = 1;
  bool json = false, explain = false, no_hook = false, no_pace = false, no_reports = false;
};

void Replay(const ReplayOptions& options) {
  sluice::settings::Settings parsed;
  Command command;
  for (const auto& [name, value] : options.settings) {
    if (value.empty()) continue;
    const sluice::settings::Key* key = sluice::settings::Find(name);
    const std::string error = sluice::settings::Set(parsed, *key, value, key->flag);
    if (!error.empty()) Quit(error, 2);
    command.variables[std::string(key->variable)] = value;
  }
  if (const auto conflicts = sluice::settings::Conflicts(parsed, "--"); !conflicts.empty()) Quit(conflicts.front(), 2);
  const absl::StatusOr<sluice::trace::Trace> trace = sluice::trace::Load(options.file);
  if (!trace.ok()) Quit(std::string(trace.status().message()), 1);
  command.arguments = {Existing(Prefix() / "bin" / "sluice-replay", "the replayer").string(), options.file, "--warm-up",
                       std::to_string(options.warm_up)};
  if (options.steps > 0) command.arguments.insert(command.arguments.end(), {"--steps", std::to_string(options.steps)});
  if (options.json) command.arguments.emplace_back("--json");
  if (options.no_pace) command.arguments.emplace_back("--no-pace");
  if (options.no_reports) command.arguments.emplace_back("--no-reports");
  if (options.gpu == "sim") {
    UseSimulatedGpu(command);
    if (!options.profile.empty()) command.variables["SIMGPU_PROFILE"] = options.profile;
    if (!options.timeline.empty()) {
      MustBeWritable("--timeline " + options.timeline, options.timeline);
      command.variables["SIMGPU_TIMELINE"] = options.timeline;
    }
  } else if (!options.profile.empty() || !options.timeline.empty()) {
    Quit("--profile and --timeline need the simulated GPU: add --gpu sim", 2);
  } else if (options.gpu != "auto") {
    command.variables["CUDA_VISIBLE_DEVICES"] = options.gpu;
  }
  if (!options.no_hook) Preload(command);
  if (options.no_hook && options.explain) Quit("--explain needs the engine: it cannot be used with --no-hook", 2);
  std::string recorded;
  if (options.explain) {
    std::error_code error;
    const fs::path folder = fs::temp_directory_path(error);
    if (error) Quit("--explain: no temporary folder: TMPDIR: " + error.message(), 2);
    recorded = (folder / ("sluice-explain." + std::to_string(getpid()))).string();
    command.variables[SLUICE_ENV_RECORD] = recorded;
  }
  const int status = Run(command);
  if (!options.explain) throw CLI::RuntimeError(status);
  const absl::StatusOr<sluice::trace::Trace> replayed = sluice::trace::Load(recorded);
  remove(recorded.c_str());
  if (status != 0) throw CLI::RuntimeError(status);
  if (!replayed.ok()) Quit("--explain: the engine recorded nothing: " + std::string(replayed.status().message()), 1);
  const auto explained = sluice::trace::Explain(*trace, *replayed);
  if (!explained.ok()) Quit("--explain: " + std::string(explained.status().message()), 1);
  const std::string text = sluice::trace::ExplanationText(*explained);
  fwrite(text.data(), 1, text.size(), stdout);
  throw CLI::RuntimeError(0);
}

}  // namespace

void AddTraceCommands(CLI::App& app) {
  const auto record = std::make_shared<RecordOptions>();
  CLI::App* r =
      app.add_subcommand("record", "run a program and write a trace of its GPU calls: sluice record -o FILE -- CMD...");
  r->add_option("-o,--output", record->file, "the trace to write")->required();
  r->add_option("--gpu", record->gpu, "auto, or sim: the simulated GPU")->check(CLI::IsMember({"auto", "sim"}));
  r->add_option("--level", record->level, "compression")->check(CLI::Range(1, 19))->capture_default_str();
  r->add_option("CMD", record->command, "the program and its arguments, after --")->required();
  r->prefix_command(false);
  r->callback([record] { Record(*record); });

  const auto replay = std::make_shared<ReplayOptions>();
  CLI::App* p = app.add_subcommand("replay", "play a trace under the hook, on a simulated or a real GPU");
  p->add_option("FILE", replay->file, "the trace")->required();
  p->add_option("--gpu", replay->gpu, "auto, sim, or a GPU's UUID");
  p->add_option("--memory", replay->settings["gpu-memory"], "budget, a quantity (4Gi)");
  p->add_option("--fraction", replay->settings["gpu-fraction"], "budget as a fraction of the GPU");
  p->add_option("--memory-limit", replay->settings["memory-limit"], "bytes that may be live");
  p->add_option("--memory-factor", replay->settings["memory-factor"],
                "percent of the budget that tracked memory may fill");
  p->add_option("--prefetch", replay->settings["prefetch"], "off, launch, predict");
  p->add_option("--log-level", replay->settings["log-level"], "ERROR, WARN, INFO, DEBUG");
  p->add_option("--steps", replay->steps, "play only the first N steps")->check(CLI::Range(1, 1000000));
  p->add_option("--warm-up", replay->warm_up, "steps that the figures leave out")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  p->add_option("--profile", replay->profile, "simulated GPU: a profile's name or file");
  p->add_option("--timeline", replay->timeline, "simulated GPU: write a Chrome trace here (opens in Perfetto)");
  p->add_flag("--json", replay->json, "print the figures as one JSON object");
  p->add_flag("--explain", replay->explain,
              "print each launch's access set by source, beside the bytes that it touched");
  p->add_flag("--no-hook", replay->no_hook, "without sluice");
  p->add_flag("--no-pace", replay->no_pace, "do not play the host's pauses between calls");
  p->add_flag("--no-reports", replay->no_reports, "do not play the allocator's reports");
  p->callback([replay] { Replay(*replay); });
}
