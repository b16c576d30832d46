// The paths by which the dynamic loader finds the hook library and the simulated driver. Not thread-safe.
#ifndef SLUICE_COMMON_LOADER_PATHS_H_
#define SLUICE_COMMON_LOADER_PATHS_H_

#include <optional>
#include <string>

namespace sluice {

// A new folder for this run, of which only this user can read the contents, in $TMPDIR or /tmp. Its path is short
// enough for a socket and fit for LD_PRELOAD. Returns nullopt with `error` ("PATH: Read-only file system").
std::optional<std::string> MakeRunFolder(std::string& error);

// The loader splits LD_PRELOAD and LD_LIBRARY_PATH at blanks, colons and semicolons, expands '$', and knows no quoting.
// A folder with such a character in its path is reached by a link in a folder of this run.
class LoaderPaths {
 public:
  LoaderPaths() = default;
  LoaderPaths(const LoaderPaths&) = delete;
  LoaderPaths& operator=(const LoaderPaths&) = delete;
  ~LoaderPaths();
  // `path` of a file or folder, or a path to the same one that the loader takes. The links hold until this is
  // destroyed. Returns nullopt with `error`, a sentence that names the path, where no link can be made.
  std::optional<std::string> Fit(const std::string& path, std::string& error);

 private:
  std::string folder_;
  int links_ = 0;
};

// `first` before the value that the variable has now: "first:value", or `first` alone.
std::string PrependedTo(const char* variable, const std::string& first);

}  // namespace sluice

#endif  // SLUICE_COMMON_LOADER_PATHS_H_
