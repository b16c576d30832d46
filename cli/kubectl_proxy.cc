#include "cli/kubectl_proxy.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace sluice::cli {
namespace {

// A login plugin may ask its server first.
constexpr std::chrono::seconds kStartLimit{10};
constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP};

// For the signal handler, which may call async-signal-safe functions alone.
volatile pid_t g_child = -1;
char g_folder[96], g_socket[112];
struct sigaction g_before[std::size(kEndingSignals)];

void CleanUpAndEnd(int signal) {
  if (g_child > 0) kill(g_child, SIGKILL);
  unlink(g_socket);
  rmdir(g_folder);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void CatchSignals() {
  for (size_t i = 0; i < std::size(kEndingSignals); ++i) {
    sigaction(kEndingSignals[i], nullptr, &g_before[i]);
    if (g_before[i].sa_handler == SIG_DFL) std::signal(kEndingSignals[i], CleanUpAndEnd);
  }
}

void RestoreSignals() {
  for (size_t i = 0; i < std::size(kEndingSignals); ++i) sigaction(kEndingSignals[i], &g_before[i], nullptr);
}

// In the child of a process with threads: async-signal-safe calls alone.
[[noreturn]] void Execute(char* const* argv, pid_t parent, int out) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(out, STDOUT_FILENO);
  if (null >= 0) dup2(null, STDERR_FILENO);
  execvp(argv[0], argv);
  _exit(127);
}

// Whether the child says that it serves. False: it ended, or time is up.
bool Serves(int out) {
  std::string output;
  const auto end = std::chrono::steady_clock::now() + kStartLimit;
  while (output.find("Starting to serve") == std::string::npos) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd fd = {out, POLLIN, 0};
    if (left.count() <= 0 || (poll(&fd, 1, static_cast<int>(left.count())) < 0 && errno != EINTR)) return false;
    char buffer[512];
    const ssize_t n = fd.revents == 0 ? -1 : read(out, buffer, sizeof buffer);
    if (n == 0) return false;
    if (n > 0) output.append(buffer, static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

std::unique_ptr<KubectlProxy> KubectlProxy::Start(const Kubectl& kubectl) {
  for (const char* const parent : {std::getenv("XDG_RUNTIME_DIR"), const_cast<char*>("/tmp")}) {
    if (parent == nullptr) continue;
    std::string folder = std::string(parent) + "/sluice-XXXXXX";  // its mode is 0700
    if (folder.size() >= sizeof g_folder || mkdtemp(folder.data()) == nullptr) continue;
    std::unique_ptr<KubectlProxy> made(new KubectlProxy);
    made->folder_ = folder;
    made->socket_ = folder + "/api.sock";
    // A server's path, as Rancher's, is part of every request only with --append-server-path.
    std::vector<std::string> words = {"kubectl"};
    words.insert(words.end(), kubectl.global().begin(), kubectl.global().end());
    words.insert(words.end(), {"proxy", "--unix-socket=" + made->socket_, "--append-server-path=true",
                               "--reject-methods=^(POST|PUT|PATCH|DELETE)$"});
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) return nullptr;
    made->out_ = out[0];
    g_folder[made->folder_.copy(g_folder, sizeof g_folder - 1)] = 0;
    g_socket[made->socket_.copy(g_socket, sizeof g_socket - 1)] = 0;
    CatchSignals();
    const pid_t parent_pid = getpid();
    made->pid_ = _Fork();
    if (made->pid_ == 0) Execute(argv.data(), parent_pid, out[1]);
    g_child = made->pid_;
    close(out[1]);
    if (made->pid_ < 0 || !Serves(made->out_)) return nullptr;
    return made;
  }
  return nullptr;
}

KubectlProxy::~KubectlProxy() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);  // it has nothing to finish, and the socket is removed here
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (out_ >= 0) close(out_);
  g_child = -1;
  RestoreSignals();
  unlink(socket_.c_str());
  rmdir(folder_.c_str());
}

}  // namespace sluice::cli
