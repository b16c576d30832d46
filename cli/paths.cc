#include "cli/paths.h"

#include <unistd.h>

#include <filesystem>

#include "sluice/names.h"

namespace sluice::cli {

std::string BinDir() {
  std::error_code ec;
  return std::filesystem::read_symlink("/proc/self/exe", ec).parent_path();
}

std::vector<std::string> ShimCandidates() {
  const std::filesystem::path bin = BinDir();
  return {(bin / "../lib/" SLUICE_SHIM_NAME).lexically_normal(),
          (bin / "../lib/sluice/" SLUICE_SHIM_NAME).lexically_normal(), SLUICE_CONTAINER_SHIM};
}

std::string FindShim() {
  for (const std::string& path : ShimCandidates()) {
    if (access(path.c_str(), R_OK) == 0) return path;
  }
  return {};
}

std::string SimGpuDir() { return (std::filesystem::path(BinDir()) / "../lib/simgpu").lexically_normal(); }

std::string Join(const std::vector<std::string>& parts, const std::string& between) {
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : between) + p;
  return out;
}

}  // namespace sluice::cli
