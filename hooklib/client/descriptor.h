// A descriptor of ours in somebody else's process: the program may close it at any time, all at once (closefrom) or by
// number, and put a file of its own in its place. Then it is no longer ours to use, nor to close.
#ifndef SLUICE_HOOKLIB_CLIENT_DESCRIPTOR_H_
#define SLUICE_HOOKLIB_CLIENT_DESCRIPTOR_H_

#include <sys/types.h>

namespace sluice::client {

// `fd` under a number that no program counts on: who starts with its standard input closed must not read the agent's
// frames from it.
int MoveToHighNumber(int fd);

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd);  // -1: none
  // Whether it is still what it was, by device and inode.
  bool IsOurs() const;
  int fd() const { return fd_; }
  // Closes what is ours.
  void Close();

 private:
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace sluice::client

#endif  // SLUICE_HOOKLIB_CLIENT_DESCRIPTOR_H_
