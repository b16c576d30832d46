// The file operations that the plugin needs. Errors hold path and reason.
#ifndef SLUICE_DEVICEPLUGIN_HOST_FILES_H_
#define SLUICE_DEVICEPLUGIN_HOST_FILES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::deviceplugin {

// "open /a/b: No such file or directory"; the code follows errno (NOT_FOUND, RESOURCE_EXHAUSTED for a full disk, ...).
absl::Status ErrnoError(std::string_view what, std::string_view path, int error);

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t limit = 64 << 20);

enum class Durable { kNo, kYes };
// Writes a temporary file beside `path` and renames it, so that a reader sees the old or the new content. kYes: syncs
// file and folder.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content, Durable durable);

absl::Status MakeDirs(const std::string& path);
absl::Status SyncDir(const std::string& path);
absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path);  // names, sorted, without . and ..
absl::Status RemoveTree(const std::string& path);                           // OK if it is absent
// Changes when the file is written or replaced (a ConfigMap's files are links that move). Empty: there is none.
std::string FileStamp(const std::string& path);
bool IsDir(const std::string& path);
bool IsFile(const std::string& path);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_FILES_H_
