#include "common/loader_paths.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace sluice {
namespace {

constexpr std::size_t kMaxPatternChars = 80;  // the path of an agent's socket in the folder fits into 107

bool IsFit(const std::string& path) { return path.find_first_of(" \t\n\v\f\r:;$") == std::string::npos; }

}  // namespace

std::optional<std::string> MakeRunFolder(std::string& error) {
  const char* tmp = std::getenv("TMPDIR");
  std::string pattern = std::string(tmp != nullptr && *tmp != '\0' ? tmp : "/tmp") + "/sluice-XXXXXX";
  if (pattern.size() > kMaxPatternChars || !IsFit(pattern)) pattern = "/tmp/sluice-XXXXXX";
  if (mkdtemp(pattern.data()) != nullptr) return pattern;
  error = pattern + ": " + std::strerror(errno);
  return std::nullopt;
}

LoaderPaths::~LoaderPaths() {
  std::error_code ec;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ec);
}

std::optional<std::string> LoaderPaths::Fit(const std::string& path, std::string& error) {
  if (IsFit(path)) return path;
  const std::string refused =
      "'" + path + "' cannot be preloaded from a path with a blank or colon, and no link to it can be made: ";
  if (folder_.empty()) {
    const std::optional<std::string> made = MakeRunFolder(error);
    if (!made) {
      error = refused + error;
      return std::nullopt;
    }
    folder_ = *made;
  }
  // A link to the folder, not the file: the library finds its neighbours beside itself.
  const std::filesystem::path target(path);
  const std::string link = folder_ + "/link" + std::to_string(links_++);
  std::string fit = link + "/" + target.filename().string();
  if (!IsFit(fit)) {
    error = refused + "its own name has a blank or colon";
  } else if (symlink(target.parent_path().c_str(), link.c_str()) != 0) {
    error = refused + std::strerror(errno);
  } else {
    return fit;
  }
  return std::nullopt;
}

std::string PrependedTo(const char* variable, const std::string& first) {
  const char* present = std::getenv(variable);
  return present != nullptr && *present != '\0' ? first + ":" + present : first;
}

}  // namespace sluice
