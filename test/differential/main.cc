// Runs random legal CUDA programs, each in a process of its own, and prints the result of each:
//   differential run FIRST LAST [--ops N] [--drop I,J,...] [--text] [--seconds N] [--until SECONDS]
//   differential print SEED [--ops N] [--drop I,J,...]
// `run` prints a line "SEED STATUS HASH STEPS" for each program. STATUS: ok, a step that failed (step N), a signal or
// an exit status (died N), or `hangs`. --drop leaves operations out, which shrinks a program. --text prints all
// observations. The same seed makes the same program, hooked or not; differential_test.py compares them.
#include <execinfo.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include "machine.h"
#include "program.h"

using namespace differential;  // NOLINT(google-build-using-namespace)

namespace {

struct Options {
  int ops = 60;
  int seconds = 30;
  long until = 0;
  bool text = false;
  std::set<int> drop;
  Target target;
};

int Usage(const std::string& wrong) {
  std::fprintf(stderr,
               "differential: %s\nusage: differential run FIRST LAST | print SEED | count SEED, with [--ops N] [--drop "
               "I,J] [--gpus N] "
               "[--green] [--discard] [--textures] [--forms 7] [--waits] [--peers] [--appends] [--execs] [--copies] "
               "[--text] [--seconds N] "
               "[--until SECONDS]\n",
               wrong.c_str());
  return 2;
}

std::vector<Step> Make(uint64_t seed, const Options& options) {
  const std::vector<Op> all = Generate(seed, options.ops, options.target);
  std::vector<Op> kept;
  for (size_t i = 0; i < all.size(); ++i) {
    if (options.drop.count(static_cast<int>(i)) == 0) kept.push_back(all[i]);
  }
  return Lower(kept, options.target);
}

// A program that hangs prints the stack of each of its threads before it is killed.
void PrintStack(int) {
  void* frames[48];
  backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, "\n", 1);
}
void PrintStacks(pid_t child) {
  const std::string tasks = "/proc/" + std::to_string(child) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, std::filesystem::directory_options())) {
    const auto thread = static_cast<pid_t>(std::atoi(task.path().filename().c_str()));
    std::fprintf(stderr, "program %d, thread %d:\n", child, thread);
    syscall(SYS_tgkill, child, thread, SIGUSR2);
    usleep(100000);
  }
}

// In the child process.
void RunProgram(uint64_t seed, const Options& options, int out) {
  const std::vector<Step> steps = Make(seed, options);
  KeepText(options.text);
  void* frame = nullptr;
  (void)backtrace(&frame, 1);  // loads what it needs: a handler may not
  signal(SIGUSR2, PrintStack);
  if (const Peer peer = PeerOf(steps); peer != Peer::kNone) StartPeer(peer == Peer::kExports, out);
  Start();
  const int failed = Execute(steps);
  EndThreads();
  EndPeer();
  char line[128];
  if (failed < 0) {
    std::snprintf(line, sizeof line, "ok %016llx %zu\n", static_cast<unsigned long long>(RecordHash()), steps.size());
  } else {
    std::snprintf(line, sizeof line, "step-%d %016llx %zu\n", failed, static_cast<unsigned long long>(RecordHash()),
                  steps.size());
  }
  std::string text = line;
  text += RecordText();
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(out, text.data() + done, text.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  close(out);
  std::exit(0);  // static destructors and the hook's own run
}

void RunOne(uint64_t seed, const Options& options) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    RunProgram(seed, options, ends[1]);
  }
  close(ends[1]);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.seconds);
  std::string text;
  bool hangs = false;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    if (left <= 0) {
      hangs = true;
      break;
    }
    pollfd one{ends[0], POLLIN, 0};
    const int ready = poll(&one, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) continue;
    char buffer[65536];
    const ssize_t n = read(ends[0], buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  // The process may hang in its end as well.
  while (!hangs && waitpid(child, &status, WNOHANG) == 0) {
    hangs = std::chrono::steady_clock::now() > end;
    usleep(200);
  }
  if (hangs) {
    PrintStacks(child);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    std::printf("%llu hangs\n", static_cast<unsigned long long>(seed));
  } else if (WIFSIGNALED(status)) {
    std::printf("%llu died-%d\n", static_cast<unsigned long long>(seed), WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0 || text.empty()) {
    std::printf("%llu exit-%d\n", static_cast<unsigned long long>(seed), WEXITSTATUS(status));
  } else {
    std::printf("%llu %s", static_cast<unsigned long long>(seed), text.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* next = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--text") {
      options.text = true;
    } else if (word == "--green") {
      options.target.green_contexts = true;
    } else if (word == "--discard") {
      options.target.discard = true;
    } else if (word == "--waits") {
      options.target.waits = true;
    } else if (word == "--peers") {
      options.target.peers = true;
    } else if (word == "--appends") {
      options.target.appends = true;
    } else if (word == "--execs") {
      options.target.execs = true;
    } else if (word == "--copies") {
      options.target.copies = true;
    } else if (word == "--textures") {
      options.target.textures = true;
    } else if (word.rfind("--", 0) == 0) {
      if (next == nullptr) return Usage(word + " needs a value");
      ++i;
      if (word == "--ops")
        options.ops = std::atoi(next);
      else if (word == "--seconds")
        options.seconds = std::atoi(next);
      else if (word == "--until")
        options.until = std::atol(next);
      else if (word == "--gpus")
        options.target.gpus = std::atoi(next);
      else if (word == "--forms")
        options.target.forms = std::atoi(next);
      else if (word == "--drop") {
        for (const char* at = next; *at != '\0';) {
          char* end;
          options.drop.insert(static_cast<int>(std::strtol(at, &end, 10)));
          if (end == at) return Usage("--drop needs numbers separated by commas");
          at = *end == ',' ? end + 1 : end;
        }
      } else {
        return Usage("unknown option " + word);
      }
    } else {
      words.push_back(word);
    }
  }
  if (options.ops < 1 || options.ops > 400 || options.target.gpus < 1 || options.target.gpus > 2) {
    return Usage("accepted: --ops 1 to 400, --gpus 1 or 2");
  }
  if (words.size() == 2 && words[0] == "print") {
    std::fputs(Print(Make(std::strtoull(words[1].c_str(), nullptr, 10), options), "seed " + words[1]).c_str(), stdout);
    return 0;
  }
  if (words.size() == 2 && words[0] == "count") {
    std::printf("%zu\n", Generate(std::strtoull(words[1].c_str(), nullptr, 10), options.ops, options.target).size());
    return 0;
  }
  if (words.size() != 3 || words[0] != "run") return Usage("no such command");
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t last = std::strtoull(words[2].c_str(), nullptr, 10);
  for (uint64_t seed = std::strtoull(words[1].c_str(), nullptr, 10); seed <= last; ++seed) {
    RunOne(seed, options);
    if (options.until > 0 && std::chrono::steady_clock::now() - begin > std::chrono::seconds(options.until)) break;
  }
  return 0;
}
