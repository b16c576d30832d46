// How every program of ours reads a file that its caller names: whole, or with a sentence of error. Any thread.
#ifndef SLUICE_COMMON_READ_FILE_H_
#define SLUICE_COMMON_READ_FILE_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

namespace sluice {

// The bytes of `path`. Returns nullopt with `error` ("PATH: Is a directory") where it cannot be opened or read to its
// end, or has more than `max_bytes` bytes (/dev/zero). Not std::ifstream, which also opens a folder: a configuration
// that was mounted as one would be an empty file.
inline std::optional<std::string> ReadWholeFile(const std::string& path, std::string& error,
                                                size_t max_bytes = size_t{64} << 20) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string bytes;
  ssize_t n = fd < 0 ? -1 : 1;
  char piece[1 << 16];
  while (n > 0 || (n < 0 && fd >= 0 && errno == EINTR)) {
    n = read(fd, piece, sizeof piece);
    if (n > 0) bytes.append(piece, static_cast<size_t>(n));
    if (bytes.size() > max_bytes) {
      close(fd);
      error = path + ": is larger than " + std::to_string(max_bytes >> 20) + " MiB";
      return std::nullopt;
    }
  }
  const int failed = n < 0 ? errno : 0;
  if (fd >= 0) close(fd);
  if (failed == 0) return bytes;
  error = path + ": " + std::strerror(failed);
  return std::nullopt;
}

// The same for a file that a daemon reads again while it runs: a pipe at `path` would hold its loop up until another
// process writes.
inline std::optional<std::string> ReadReloadedFile(const std::string& path, std::string& error,
                                                   size_t max_bytes = size_t{1} << 20) {
  struct stat st{};
  if (stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
    error = path + ": is no plain file; accepted: a file";
    return std::nullopt;
  }
  return ReadWholeFile(path, error, max_bytes);
}

// Whether a new file may be renamed to `path`: the name is free, or a regular file has it. A rename would also replace
// a device, as /dev/null. `error` as above.
inline bool MayBeReplaced(const std::string& path, std::string& error) {
  struct stat st{};
  if (stat(path.c_str(), &st) != 0 || S_ISREG(st.st_mode)) return true;
  error = path + ": is no plain file; accepted: a file, or a name that is free";
  return false;
}

}  // namespace sluice

#endif  // SLUICE_COMMON_READ_FILE_H_
