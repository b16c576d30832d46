#include "cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::cli {
namespace {

sigset_t g_mask_before;
bool g_child_was_ignored = false;
// Not SIGTSTP and SIGTTOU: with them the shell stops the whole group.
constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM};

sigset_t Waited() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : kForwarded) sigaddset(&set, s);
  sigaddset(&set, SIGCHLD);
  return set;
}

// In the child: other threads may have held any lock, so only async-signal-safe calls are made. glibc's
// execvpe is one in fact: it allocates on the stack alone.
[[noreturn]] void Execute(char* const* argv, char* const* envp, bool own_group, int report) {
  if (own_group) setpgid(0, 0);
  if (g_child_was_ignored) signal(SIGCHLD, SIG_IGN);
  sigprocmask(SIG_SETMASK, &g_mask_before, nullptr);
  execvpe(argv[0], argv, envp);
  const int error = errno;
  while (write(report, &error, sizeof error) < 0 && errno == EINTR) {
  }
  _exit(127);
}

}  // namespace

void KeepChildStatus() {
  struct sigaction before{};
  if (sigaction(SIGCHLD, nullptr, &before) != 0 || before.sa_handler != SIG_IGN) return;
  g_child_was_ignored = true;
  signal(SIGCHLD, SIG_DFL);
}

void BlockSignals() {
  const sigset_t set = Waited();
  pthread_sigmask(SIG_BLOCK, &set, &g_mask_before);
}

// Not posix_spawn, which cannot give the child an ignored signal that this process does not ignore, and does not run a
// script without a #! line. Not fork, which calls gRPC's fork handlers: they may wait or change the signal mask.
pid_t Spawn(const std::vector<std::string>& args, const std::vector<std::string>& environment, bool own_group) {
  std::vector<char*> argv, envp;
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& e : environment) envp.push_back(const_cast<char*>(e.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  int report[2];  // closed by the execution, else it carries errno
  if (pipe2(report, O_CLOEXEC) != 0) return -1;
  const pid_t pid = _Fork();
  if (pid == 0) Execute(argv.data(), envp.data(), own_group, report[1]);
  int error = pid < 0 ? errno : 0;
  close(report[1]);
  if (pid > 0) {
    ssize_t got = 0;
    while ((got = read(report[0], &error, sizeof error)) < 0 && errno == EINTR) {
    }
    if (got != static_cast<ssize_t>(sizeof error)) error = 0;
    if (error != 0) waitpid(pid, nullptr, 0);
  }
  close(report[0]);
  if (error == 0) return pid;
  errno = error;
  return -1;
}

int WaitForwarding(pid_t pid) {
  const sigset_t set = Waited();
  for (;;) {
    int status = 0;
    const pid_t got = waitpid(pid, &status, WNOHANG);
    if (got == pid) return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (got < 0 && errno != EINTR) return 125;
    siginfo_t info{};
    const int sig = sigwaitinfo(&set, &info);
    if (sig <= 0 || sig == SIGCHLD) continue;
    // The terminal's signals (SI_KERNEL) reach the whole foreground group, the program included.
    if (info.si_code != SI_KERNEL) kill(pid, sig);
  }
}

}  // namespace sluice::cli
