// The common clock of the processes on one card state: each waits until no other one can still act earlier.
#include <dirent.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "shared_state.h"

namespace simgpu {
namespace {

// Whether every thread of the process waits for something in the kernel other than a disk.
bool Asleep(int pid) {
  DIR* tasks = opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
  if (tasks == nullptr) return false;
  bool asleep = true;
  while (const dirent* task = readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    std::ifstream in("/proc/" + std::to_string(pid) + "/task/" + task->d_name + "/stat");
    std::string line;
    if (!std::getline(in, line)) continue;
    const auto paren = line.rfind(')');
    if (paren == std::string::npos || paren + 2 >= line.size() || line[paren + 2] != 'S') asleep = false;
  }
  closedir(tasks);
  return asleep;
}

void SleepMicroseconds(int64_t us) {
  timespec ts{us / 1000000, (us % 1000000) * 1000};
  nanosleep(&ts, nullptr);
}

int64_t RealMilliseconds() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

}  // namespace

void SharedState::WaitForOthers(int64_t time) {
  if (!shared_) return;
  const auto behind = [&](int i) {
    const Slot& s = header_->slots[i];
    if (i == slot_ || s.pid == 0 || s.running == 0) return false;
    const int64_t bound = s.clock + window_ns_;
    return bound < time || (bound == time && i < slot_);
  };
  int64_t moved_at = 0, checked_at = 0;
  int64_t seen[kMaxSlots] = {};
  int asleep[kMaxSlots] = {};
  for (int spins = 0;; ++spins) {
    bool wait = false, progress = false;
    for (int i = 0; i < kMaxSlots; ++i) {
      if (!behind(i)) continue;
      wait = true;
      const int64_t clock = header_->slots[i].clock;
      if (clock != seen[i]) {
        progress = true;
        asleep[i] = 0;
      }
      seen[i] = clock;
    }
    if (!wait) break;
    self().waiting = 1;
    // The other process may need this core.
    if (spins > 20) sched_yield();
    if (spins <= 2000) continue;
    SleepMicroseconds(50);
    const int64_t now = RealMilliseconds();
    if (progress || moved_at == 0) moved_at = checked_at = now;
    if (now - checked_at < 2) continue;
    checked_at = now;
    const bool too_long = now - moved_at > patience_ms_;
    for (int i = 0; i < kMaxSlots; ++i) {
      Slot& s = header_->slots[i];
      if (!behind(i)) continue;
      const int pid = Owner(i);
      asleep[i] = s.waiting == 0 && pid > 0 && Asleep(pid) ? asleep[i] + 1 : 0;
      if (asleep[i] >= 4 || too_long) s.running = 0;
    }
    if (too_long) Reap();
  }
  self().waiting = 0;
}

int64_t SharedState::Publish(int64_t time) {
  if (!shared_ || slot_ < 0) return time;
  Slot& s = self();
  if (s.running == 0) {
    // The others continued without this process: it was idle until the clock of the slowest of them.
    int64_t slowest = INT64_MAX;
    for (Slot& other : header_->slots) {
      if (&other != &s && other.pid != 0 && other.running != 0) slowest = std::min<int64_t>(slowest, other.clock);
    }
    if (slowest != INT64_MAX) time = std::max(time, slowest);
    s.clock = std::max<int64_t>(s.clock, time);
    s.running = 1;
  }
  if (time > s.clock) s.clock = time;
  int64_t now = header_->now;
  while (time > now && !header_->now.compare_exchange_weak(now, time)) {
  }
  return std::max<int64_t>(time, 0);
}

}  // namespace simgpu
