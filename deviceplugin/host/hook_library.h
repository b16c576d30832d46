// The hook library on the host: <lib>/<version>-<build id>/ holds shim and engine of one build and never changes.
// (Replacing a library in place crashes the processes that have mapped it.)
#ifndef SLUICE_DEVICEPLUGIN_HOST_HOOK_LIBRARY_H_
#define SLUICE_DEVICEPLUGIN_HOST_HOOK_LIBRARY_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/selinux/container_label.h"

namespace sluice::deviceplugin {

// "<version>-<build id>"; the build id is a hash over the names and contents of shim and engine.
absl::StatusOr<std::string> HookLibraryId(const std::string& source_dir);

// Copies shim and engine of `source_dir` into <destination>/<id>/, durably and atomically (by rename), and returns that
// path. An existing complete copy is only relabelled; a damaged copy is an error. Refuses a destination that is mounted
// noexec, from which the loader could not map the library.
absl::StatusOr<std::string> InstallHookLibrary(const std::string& source_dir, const std::string& destination,
                                               const std::string& label = ContainerLabel());

// OK if shim and engine are in the directory; else the message names the missing file.
absl::Status CheckHookLibrary(const std::string& dir);

// Names of the installed versions in the folder.
std::vector<std::string> ListHookLibraries(const std::string& destination);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_HOOK_LIBRARY_H_
