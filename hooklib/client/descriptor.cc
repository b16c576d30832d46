#include "client/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sluice::client {

int MoveToHighNumber(int fd) {
  constexpr int kMinNumber = 200, kMinAboveStandard = 3;
  int higher = fd >= 0 && fd < kMinNumber ? fcntl(fd, F_DUPFD_CLOEXEC, kMinNumber) : -1;
  if (higher < 0 && fd >= 0 && fd < kMinAboveStandard)
    higher = fcntl(fd, F_DUPFD_CLOEXEC, kMinAboveStandard);  // the limit is low
  if (higher < 0) return fd;
  close(fd);
  return higher;
}

Descriptor::Descriptor(int fd) : fd_(fd) {
  struct stat status{};
  if (fd < 0 || fstat(fd, &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

bool Descriptor::IsOurs() const {
  struct stat status{};
  return fd_ >= 0 && fstat(fd_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

void Descriptor::Close() {
  if (IsOurs()) close(fd_);
  fd_ = -1;
}

}  // namespace sluice::client
