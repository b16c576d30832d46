#include "cli/preload.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/agent_connection.h"

namespace sluice::cli {
namespace {

constexpr int kOwnFailure = 125;
constexpr std::size_t kMaxPatternChars = 80;  // the path of an agent's socket in the folder fits into 107

bool IsFit(const std::string& path) { return path.find_first_of(" \t\n\v\f\r:;$") == std::string::npos; }

}  // namespace

std::string MakeRunFolder(const std::string& why) {
  const char* tmp = std::getenv("TMPDIR");
  std::string pattern = std::string(tmp != nullptr && *tmp != '\0' ? tmp : "/tmp") + "/sluice-XXXXXX";
  if (pattern.size() > kMaxPatternChars || !IsFit(pattern)) pattern = "/tmp/sluice-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) Fail(kOwnFailure, why + pattern + ": " + std::strerror(errno));
  return pattern;
}

LoaderPaths::~LoaderPaths() {
  std::error_code ec;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ec);
}

std::string LoaderPaths::Fit(const std::string& path) {
  if (IsFit(path)) return path;
  const std::string refused =
      "'" + path + "' cannot be preloaded from a path with a blank or colon, and no link to it can be made: ";
  if (folder_.empty()) folder_ = MakeRunFolder(refused);
  // A link to the folder, not the file: the library finds its neighbours beside itself.
  const std::filesystem::path target(path);
  const std::string link = folder_ + "/link" + std::to_string(links_++);
  const std::string fit = link + "/" + target.filename().string();
  if (!IsFit(fit)) Fail(kOwnFailure, refused + "its own name has a blank or colon");
  if (symlink(target.parent_path().c_str(), link.c_str()) != 0) Fail(kOwnFailure, refused + std::strerror(errno));
  return fit;
}

}  // namespace sluice::cli
