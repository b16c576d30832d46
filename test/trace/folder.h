// A temporary folder for one test, removed with everything in it.
#ifndef SLUICE_TEST_TRACE_FOLDER_H_
#define SLUICE_TEST_TRACE_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace sluice::trace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/sluice-trace-test.XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace sluice::trace

#endif  // SLUICE_TEST_TRACE_FOLDER_H_
