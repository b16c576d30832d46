// Paths of this build's files, relative to this program: build/bin and build/lib, or an installed pair.
#ifndef SLUICE_CLI_PATHS_H_
#define SLUICE_CLI_PATHS_H_

#include <string>
#include <vector>

namespace sluice::cli {

std::string BinDir();                       // of this program
std::vector<std::string> ShimCandidates();  // in the order in which they are tried
std::string FindShim();                     // the first candidate that exists; empty: none
std::string SimGpuDir();                    // ../lib/simgpu
std::string Join(const std::vector<std::string>& parts, const std::string& between);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_PATHS_H_
