// Reads the kernel's account of a process, from /proc. Thread-safe.
#ifndef SLUICE_AGENT_PROCESS_FACTS_H_
#define SLUICE_AGENT_PROCESS_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/identity.h"

namespace sluice::agent {

// The cgroup alone: a few microseconds, for each process that connects. Empty for pid 0, and for a process that ended.
ContainerKey ReadContainer(int64_t pid);

// The same for one whose first thread may have ended: it is asked of a thread that lives. A process that hides its
// cgroup is of the pod kHiddenPod. Some more microseconds.
ContainerKey ReadContainerOfAny(int64_t pid);

// Fills in the members that the cgroup tells.
void ReadCgroup(int64_t pid, ProcessFacts* facts);

// All facts. The mounts are all of the process.
// `listed_ns`: when the driver was asked for the pid (BootNs).
ProcessFacts ReadFacts(int64_t pid, uint64_t listed_ns);
uint64_t BootNs();
// Whether a process that started then is surely the one that a list of that time names.
bool WasListed(uint64_t started_ns, uint64_t listed_ns);

// The folder of `cgroup` below `root`. A process in a cgroup namespace of its own sees paths of others as "/../..."; so
// the folder is looked for then. Empty: there is none.
std::string CgroupFolder(const std::string& root, const std::string& cgroup);

// This process's own mounts.
std::vector<Mount> OwnMounts();

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_PROCESS_FACTS_H_
