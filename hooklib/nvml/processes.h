// Which processes belong to this container.
#ifndef SLUICE_HOOKLIB_NVML_PROCESSES_H_
#define SLUICE_HOOKLIB_NVML_PROCESSES_H_

#include <array>

namespace sluice {

// Same container: visible in our pid namespace and in our cgroup. Reads /proc when asked; not thread-safe, make one per
// use.
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
