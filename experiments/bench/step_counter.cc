#include "experiments/bench/step_counter.h"

#include <elf.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace sluice::bench {

// Written by both processes, but never at once: the thread is stopped while the stepper counts.
struct StepCounter::Shared {
  std::atomic<bool> stepping{false}, leave{false};
  std::atomic<int> sample{-1};  // the one that is counted now; -1: none
  std::atomic<int> samples{0};
  long counts[kMaxSamples][kMaxObjects];
};

namespace {

[[noreturn]] void Fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

struct Range {
  uint64_t begin, end;
  size_t object;
};

// The executable ranges of a process.
std::vector<Range> Executables(pid_t pid, const std::vector<std::string>& objects) {
  std::vector<Range> ranges;
  std::FILE* const maps = std::fopen(("/proc/" + std::to_string(pid) + "/maps").c_str(), "r");
  if (maps == nullptr) return ranges;
  char* line = nullptr;
  size_t room = 0;
  while (getline(&line, &room, maps) > 0) {
    char* rest = nullptr;
    const uint64_t begin = std::strtoull(line, &rest, 16);
    const uint64_t end = std::strtoull(rest + 1, &rest, 16);
    const std::string text = rest;
    if (text.size() < 5 || text[3] != 'x') continue;  // " r-xp ... path"
    const auto found = std::find_if(objects.begin(), objects.end(),
                                    [&](const std::string& name) { return text.find(name) != std::string::npos; });
    ranges.push_back({begin, end, static_cast<size_t>(found - objects.begin())});
  }
  std::free(line);
  std::fclose(maps);
  return ranges;
}

// The address of the stopped thread's next instruction; 0 if the thread is gone.
uint64_t NextInstruction(pid_t thread) {
  user_regs_struct registers{};
  iovec place{&registers, sizeof registers};
  if (ptrace(PTRACE_GETREGSET, thread, reinterpret_cast<void*>(NT_PRSTATUS), &place) != 0) return 0;
#if defined(__x86_64__)
  return registers.rip;
#else
  return registers.pc;
#endif
}

// Waits for the thread's stop. False: it has ended. `signal` is one to deliver, 0 for none.
bool Stopped(pid_t thread, int* signal) {
  int status = 0;
  pid_t which = 0;
  do {
    which = waitpid(thread, &status, __WALL);
  } while (which < 0 && errno == EINTR);
  if (which != thread || !WIFSTOPPED(status)) return false;
  // A step ends with SIGTRAP; stops of ptrace itself have an event in the upper bits.
  *signal = (status >> 16) != 0 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
  return true;
}

}  // namespace

StepCounter::StepCounter(std::vector<std::string> objects) : objects_(std::move(objects)) {
  if (objects_.size() >= kMaxObjects) objects_.resize(kMaxObjects - 1);
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("mmap");
  shared_ = new (memory) Shared;
  int requests[2], answers[2];
  if (pipe(requests) != 0 || pipe(answers) != 0) Fail("pipe");
  const pid_t parent = getpid();
  stepper_ = fork();
  if (stepper_ < 0) Fail("fork");
  if (stepper_ == 0) {
    close(requests[1]);
    close(answers[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    Step(requests[0], answers[1]);
  }
  close(requests[0]);
  close(answers[1]);
  requests_ = requests[1];
  answers_ = answers[0];
  prctl(PR_SET_PTRACER, stepper_);  // where Yama allows a process to trace its descendants alone
}

StepCounter::~StepCounter() {
  Detach();
  close(requests_);  // the stepper reads the end of the file, and ends
  close(answers_);
  waitpid(stepper_, nullptr, 0);
  munmap(shared_, sizeof(Shared));
}

int StepCounter::Attach() {
  const pid_t thread = gettid();
  int error = EPIPE;
  if (write(requests_, &thread, sizeof thread) != sizeof thread) return EPIPE;
  if (read(answers_, &error, sizeof error) != sizeof error) return EPIPE;
  return error;
}

void StepCounter::Detach() {
  if (!shared_->stepping) return;
  shared_->leave = true;
  while (shared_->stepping) sched_yield();
}

void StepCounter::Begin() {
  if (const int next = shared_->samples; next < kMaxSamples) shared_->sample = next;
}

void StepCounter::End() {
  if (shared_->sample.exchange(-1) >= 0) ++shared_->samples;
}

int StepCounter::samples() const { return shared_->samples; }

long StepCounter::Count(int sample, size_t object) const { return shared_->counts[sample][object]; }

long StepCounter::Count(int sample) const {
  long sum = 0;
  for (const long count : shared_->counts[sample]) sum += count;
  return sum;
}

void StepCounter::Step(int requests, int answers) {
  pid_t thread = 0;
  std::vector<Range> ranges;
  while (read(requests, &thread, sizeof thread) == sizeof thread) {
    int error = 0, signal = 0;
    if (ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0 ||
        ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0 || !Stopped(thread, &signal))
      error = errno != 0 ? errno : ESRCH;
    if (ranges.empty()) ranges = Executables(thread, objects_);
    if (error == 0) shared_->stepping = true;
    if (write(answers, &error, sizeof error) != sizeof error) _exit(1);
    if (error != 0) continue;
    size_t last = 0;  // code stays in one object for long
    while (!shared_->leave) {
      const uint64_t at = NextInstruction(thread);
      const int sample = shared_->sample;
      const auto long_signal = static_cast<uintptr_t>(signal);
      if (ptrace(PTRACE_SINGLESTEP, thread, nullptr, reinterpret_cast<void*>(long_signal)) != 0) _exit(1);
      if (!Stopped(thread, &signal)) _exit(0);
      // A repeated string instruction stops once a repetition and counts once, as a performance counter does; a signal
      // stops the thread before it executes anything.
      if (sample < 0 || signal != 0 || NextInstruction(thread) == at) continue;
      const auto holds = [at](const Range& range) { return range.begin <= at && at < range.end; };
      if (last >= ranges.size() || !holds(ranges[last]))
        last = static_cast<size_t>(std::find_if(ranges.begin(), ranges.end(), holds) - ranges.begin());
      ++shared_->counts[sample][last < ranges.size() ? ranges[last].object : objects_.size()];
    }
    ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
    shared_->leave = false;
    shared_->stepping = false;
  }
  _exit(0);
}

}  // namespace sluice::bench
