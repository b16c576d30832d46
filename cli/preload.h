// The paths by which the dynamic loader finds the hook library and the simulated driver.
#ifndef SLUICE_CLI_PRELOAD_H_
#define SLUICE_CLI_PRELOAD_H_

#include <string>

namespace sluice::cli {

// A new folder for this run, of which only this user can read the contents. Its path is short enough for a socket and
// fit for LD_PRELOAD. Fails with errno's text where there can be none; `why` begins the message.
std::string MakeRunFolder(const std::string& why);

// The loader splits LD_PRELOAD and LD_LIBRARY_PATH at blanks, colons and semicolons, expands '$', and knows no quoting.
// A folder with such a character in its path is reached by a link in a folder of this run.
class LoaderPaths {
 public:
  LoaderPaths() = default;
  LoaderPaths(const LoaderPaths&) = delete;
  LoaderPaths& operator=(const LoaderPaths&) = delete;
  ~LoaderPaths();
  // `path` of a file or folder, or a path to the same one that the loader takes. The links hold until this is
  // destroyed.
  std::string Fit(const std::string& path);

 private:
  std::string folder_;
  int links_ = 0;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_PRELOAD_H_
