// A descriptor of sluice's in the hooked process. The program may close it at any time, all at once (closefrom) or by
// number, and open a file of its own under the number. Then the client may neither use nor close it.
#ifndef SLUICE_HOOKLIB_CLIENT_DESCRIPTOR_H_
#define SLUICE_HOOKLIB_CLIENT_DESCRIPTOR_H_

#include <sys/types.h>

namespace sluice::client {

// Moves `fd` to a number that no program expects, above 200 where the limit allows it, and returns the new number. A
// program that starts with its standard input closed would otherwise read the agent's frames from it.
int MoveToHighNumber(int fd);

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd);  // -1: none
  // Whether the number still refers to the same file, by device and inode.
  bool IsOurs() const;
  int fd() const { return fd_; }
  // Closes the file if it is still ours.
  void Close();

 private:
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace sluice::client

#endif  // SLUICE_HOOKLIB_CLIENT_DESCRIPTOR_H_
