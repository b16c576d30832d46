#include "deviceplugin/host/hook_library.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "common/selinux/container_label.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"
#include "sluice/version.h"

namespace sluice::deviceplugin {
namespace {

constexpr const char* kFiles[] = {SLUICE_SHIM_NAME, SLUICE_ENGINE_NAME};

// FNV-1a: distinguishes builds. It need not resist attacks, since the files come from the node's own image.
uint64_t Hash(uint64_t hash, std::string_view bytes) {
  for (unsigned char c : bytes) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

absl::Status Label(const std::string& dir, const std::string& label) {
  for (const std::string& path : {dir, StrCat(dir, "/", kFiles[0]), StrCat(dir, "/", kFiles[1])}) {
    if (std::string error; !SetContainerLabel(path, label, &error)) return absl::PermissionDeniedError(error);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> HookLibraryId(const std::string& source_dir) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char* name : kFiles) {
    auto content = ReadFile(StrCat(source_dir, "/", name));
    if (!content.ok()) return content.status();
    hash = Hash(Hash(hash, name), *content);
  }
  return absl::StrFormat("%s-%016x", SLUICE_VERSION, hash);
}

absl::Status CheckHookLibrary(const std::string& dir) {
  for (const char* name : kFiles) {
    const std::string path = StrCat(dir, "/", name);
    if (!IsFile(path)) return absl::NotFoundError(StrCat("the hook library is missing on the host: ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> InstallHookLibrary(const std::string& source_dir, const std::string& destination,
                                               const std::string& label) {
  auto id = HookLibraryId(source_dir);
  if (!id.ok()) return id.status();
  if (auto s = MakeDirs(destination); !s.ok()) return s;
  struct statvfs fs;
  if (statvfs(destination.c_str(), &fs) != 0) return ErrnoError("read file system of", destination, errno);
  if ((fs.f_flag & ST_NOEXEC) != 0) {
    return absl::FailedPreconditionError(
        StrCat(destination,
               " is on a file system mounted noexec, from which no library can be loaded; accepted: a "
               "folder without noexec (setting libDir), or a remount with exec"));
  }
  std::string target = StrCat(destination, "/", *id);
  if (IsDir(target)) {
    auto there = HookLibraryId(target);
    if (there.ok() && *there == *id) {
      if (auto s = Label(target, label); !s.ok()) return s;
      return target;
    }
    return absl::DataLossError(StrCat(target, " exists and its content does not match its name (",
                                      there.ok() ? *there : std::string(there.status().message()),
                                      "); remove it when no running container uses it"));
  }
  // Temporary names start with a dot, so that ListHookLibraries skips them.
  const std::string temporary = StrCat(destination, "/.", *id, ".", getpid());
  (void)RemoveTree(temporary);
  if (mkdir(temporary.c_str(), 0755) != 0) return ErrnoError("make directory", temporary, errno);
  absl::Status status;
  if (chmod(temporary.c_str(), 0755) != 0) status = ErrnoError("change mode of", temporary, errno);
  for (const char* name : kFiles) {
    if (!status.ok()) break;
    const std::string path = StrCat(temporary, "/", name);
    auto content = ReadFile(StrCat(source_dir, "/", name));
    status = content.ok() ? WriteFileAtomically(path, *content, Durable::kYes) : content.status();
    if (status.ok() && chmod(path.c_str(), 0755) != 0) status = ErrnoError("change mode of", path, errno);
  }
  if (status.ok()) status = Label(temporary, label);
  if (status.ok() && rename(temporary.c_str(), target.c_str()) != 0 && !(errno == ENOTEMPTY || errno == EEXIST)) {
    status = ErrnoError("rename to", target, errno);
  }
  (void)RemoveTree(temporary);
  if (status.ok()) status = SyncDir(destination);
  if (!status.ok()) return status;
  return target;
}

std::vector<std::string> ListHookLibraries(const std::string& destination) {
  auto names = ListDir(destination);
  if (!names.ok()) return {};
  std::erase_if(*names, [](const std::string& name) { return name.starts_with("."); });
  return *names;
}

}  // namespace sluice::deviceplugin
