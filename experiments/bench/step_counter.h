// Counts a thread's instructions by single-stepping it (ptrace). It needs no performance counter, which virtual
// machines often lack, and neither load nor other threads change the counts. A step takes 5 us,
// and up to 70 in a virtual machine, where each trap leaves the guest.
#ifndef SLUICE_EXPERIMENTS_BENCH_STEP_COUNTER_H_
#define SLUICE_EXPERIMENTS_BENCH_STEP_COUNTER_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::bench {

// One thread uses it: the thread that calls Attach is stepped until Detach.
class StepCounter {
 public:
  static constexpr int kMaxSamples = 1 << 15;
  static constexpr int kMaxObjects = 8;

  // Forks the process that steps, so call it before the program starts threads or a GPU driver. Instructions are
  // counted by loaded object: the first of `objects` that the object's path contains, at most kMaxObjects - 1 of them.
  explicit StepCounter(std::vector<std::string> objects);
  ~StepCounter();
  StepCounter(const StepCounter&) = delete;
  StepCounter& operator=(const StepCounter&) = delete;

  // Steps the calling thread from here on. Objects loaded after the first call count among the others. Returns 0, or
  // the errno of the refused ptrace call.
  int Attach();
  void Detach();

  // The instructions between Begin and End make sample number 0, 1, ...; kMaxSamples at most, more are not counted.
  void Begin();
  void End();
  int samples() const;

  // Instructions of a sample in object `object` of the constructor's list; objects.size() stands for all others.
  long Count(int sample, size_t object) const;
  // Instructions of a sample in all objects.
  long Count(int sample) const;

 private:
  struct Shared;
  [[noreturn]] void Step(int requests, int answers);

  std::vector<std::string> objects_;
  Shared* shared_;
  pid_t stepper_ = -1;
  int requests_ = -1, answers_ = -1;
};

}  // namespace sluice::bench

#endif
