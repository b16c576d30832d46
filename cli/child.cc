#include "cli/child.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::cli {
namespace {

sigset_t g_before;
// Not SIGTSTP and SIGTTOU: with them the shell stops the whole group.
constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM};

sigset_t Waited() {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : kForwarded) sigaddset(&set, s);
  sigaddset(&set, SIGCHLD);
  return set;
}

}  // namespace

void BlockSignals() {
  const sigset_t set = Waited();
  pthread_sigmask(SIG_BLOCK, &set, &g_before);
}

pid_t Spawn(const std::vector<std::string>& args, const std::vector<std::string>& environment, bool own_group) {
  std::vector<char*> argv, envp;
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& e : environment) envp.push_back(const_cast<char*>(e.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawnattr_t attr;
  posix_spawnattr_init(&attr);
  posix_spawnattr_setsigmask(&attr, &g_before);
  posix_spawnattr_setpgroup(&attr, 0);
  posix_spawnattr_setflags(&attr, static_cast<short>(POSIX_SPAWN_SETSIGMASK | (own_group ? POSIX_SPAWN_SETPGROUP : 0)));
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], nullptr, &attr, argv.data(), envp.data());
  posix_spawnattr_destroy(&attr);
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
