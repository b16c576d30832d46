// The hook library on the host: <lib>/<version>-<build id>/ holds shim and engine of one build and never changes. (A
// library that is replaced in place crashes the processes that mapped it.)
#ifndef SLUICE_DEVICEPLUGIN_HOST_HOOK_LIBRARY_H_
#define SLUICE_DEVICEPLUGIN_HOST_HOOK_LIBRARY_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::deviceplugin {

// "<version>-<build id>": the build id is a hash over the names and contents of shim and engine.
absl::StatusOr<std::string> LibraryId(const std::string& source_dir);

// The SELinux label of files that every container may map; empty where the kernel runs without SELinux.
std::string ContainerLabel();

// Copies shim and engine of `source_dir` into <destination>/<id>/, durable and all at once (renamed into place), and
// returns that path. What is there already and complete is left alone but for its label; a damaged copy is an error. A
// destination that is mounted noexec is refused: the loader could not map the library from it.
absl::StatusOr<std::string> InstallLibrary(const std::string& source_dir, const std::string& destination,
                                           const std::string& label = ContainerLabel());

// OK if shim and engine are in the directory; else says which is missing.
absl::Status CheckLibrary(const std::string& dir);

// Names of installed versions in the folder.
std::vector<std::string> ListLibraries(const std::string& destination);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_HOOK_LIBRARY_H_
