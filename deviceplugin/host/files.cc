#include "deviceplugin/host/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

absl::Status WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("write", path, errno);
    content.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

std::string Parent(const std::string& path) {
  std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

absl::Status ErrnoError(std::string_view what, std::string_view path, int error) {
  const std::string text = StrCat(what, " ", path, ": ", strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EEXIST:
      return absl::AlreadyExistsError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t limit) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoError("open", path, errno);
  absl::Cleanup closer = [fd] { close(fd); };
  std::string out;
  char buffer[16384];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("read", path, errno);
    if (n == 0) return out;
    out.append(buffer, static_cast<size_t>(n));
    if (out.size() > limit) return absl::OutOfRangeError(StrCat(path, " is larger than ", limit, " bytes"));
  }
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view content, Durable durable) {
  static std::atomic<unsigned> counter{0};
  // The leading dot hides the temporary file from readers that select by suffix (CDI: *.json).
  const std::string temporary = StrCat(Parent(path), "/.", std::filesystem::path(path).filename().string(), ".",
                                       getpid(), ".", counter.fetch_add(1), ".tmp");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoError("create", temporary, errno);
  absl::Status status = WriteAll(fd, content, temporary);
  if (status.ok() && durable == Durable::kYes && fsync(fd) != 0) status = ErrnoError("sync", temporary, errno);
  if (close(fd) != 0 && status.ok()) status = ErrnoError("close", temporary, errno);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) status = ErrnoError("rename to", path, errno);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return durable == Durable::kYes ? SyncDir(Parent(path)) : absl::OkStatus();
}

absl::Status MakeDirs(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? ErrnoError("make directory", path, error.value()) : absl::OkStatus();
}

absl::Status SyncDir(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (fd < 0) return ErrnoError("open", path, errno);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return error == 0 ? absl::OkStatus() : ErrnoError("sync", path, error);
}

absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) {
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return ErrnoError("open", path, errno);
  absl::Cleanup closer = [dir] { closedir(dir); };
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(dir);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return ErrnoError("read", path, errno);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? ErrnoError("remove", path, error.value()) : absl::OkStatus();
}

std::string FileStamp(const std::string& path) {
  struct stat st;
  if (path.empty() || stat(path.c_str(), &st) != 0) return "";
  return StrCat(st.st_dev, ".", st.st_ino, ".", st.st_mtim.tv_sec, ".", st.st_mtim.tv_nsec, ".", st.st_size);
}

bool IsDir(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

bool IsFile(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

}  // namespace sluice::deviceplugin
