// The processes of this container.
#ifndef SLUICE_HOOKLIB_NVML_PROCESSES_H_
#define SLUICE_HOOKLIB_NVML_PROCESSES_H_

#include <array>

namespace sluice {

// A process of the same container is visible in this pid namespace and is in the same cgroup. Reads /proc at each call.
// Not thread-safe: make one for each use.
class Container {
 public:
  Container();
  unsigned self() const { return self_; }
  bool Holds(unsigned pid) const;

 private:
  unsigned self_;
  std::array<char, 512> cgroup_{};
  int cgroup_bytes_;
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_NVML_PROCESSES_H_
