#include "hooklib/engine/execute/own_thread.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "hooklib/engine/device/host_limits.h"

namespace sluice {
namespace {

struct Start {
  const char* name;  // of static lifetime
  void* (*run)(void*);
};

constexpr int kMaxOwnThreads = 64;
std::array<std::atomic<pid_t>, kMaxOwnThreads> g_own_threads{};

pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// A thread that finds no place counts as the program's: its process is then never ended here.
void* Run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  // Not by the starting thread: this one is detached, and may have ended. Nor by its file in /proc, whose entry makes
  // the end of a process cost 0.3 ms more.
  prctl(PR_SET_NAME, start->name, 0, 0, 0);
  std::atomic<pid_t>* place = nullptr;
  for (auto& candidate : g_own_threads) {
    pid_t none = 0;
    if (!candidate.compare_exchange_strong(none, ThisThread())) continue;
    place = &candidate;
    break;
  }
  void* const result = start->run(nullptr);
  if (place != nullptr) place->store(0);
  return result;
}

// The first bytes of a file below /proc; empty where it cannot be read.
std::array<char, 512> ReadStart(const char* path) {
  std::array<char, 512> text{};
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  if (read(file, text.data(), text.size() - 1) < 0) text[0] = '\0';
  close(file);
  return text;
}

// Of the one thread's file: the process' sums up the times of all threads.
bool IsMainThreadEnded() {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/self/task/%d/stat", getpid());
  const auto text = ReadStart(path.data());
  const char* const name_end = std::strrchr(text.data(), ')');  // the name may hold anything
  return name_end != nullptr && std::strncmp(name_end, ") Z", 3) == 0;
}

bool IsOwnThread(pid_t thread) {
  if (std::any_of(g_own_threads.begin(), g_own_threads.end(), [thread](const auto& own) { return own == thread; }))
    return true;
  // The agent's client starts its thread itself.
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/self/task/%d/comm", thread);
  return std::strcmp(ReadStart(path.data()).data(), "sluice-agent\n") == 0;
}

}  // namespace

bool StartOwnThread(const char* name, void* (*run)(void*)) {
  auto* const start = new (std::nothrow) Start{name, run};
  if (start == nullptr) return false;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  const cpu_set_t mask = CpuMask();
  pthread_attr_setaffinity_np(&attributes, sizeof mask, &mask);
  pthread_t thread;
  const bool made = pthread_create(&thread, &attributes, &Run, start) == 0;
  if (!made) delete start;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return made;
}

bool OnlyOwnThreadsAreLeft() {
  if (!IsMainThreadEnded()) return false;
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return false;
  int other = 0;
  for (const dirent* entry = readdir(threads); entry != nullptr; entry = readdir(threads)) {
    const auto thread = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (thread > 0 && thread != getpid() && !IsOwnThread(thread)) ++other;
  }
  closedir(threads);
  return other == 0;
}

}  // namespace sluice
