// Messages between a program of the tests and its child process, each with one open file or none.
#ifndef SLUICE_TEST_LIB_PASSED_FILES_H_
#define SLUICE_TEST_LIB_PASSED_FILES_H_

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstring>

namespace passed_files {

// Over a SOCK_SEQPACKET socket. `file` -1: none. False: the other process has ended.
template <class Message>
bool Send(int socket, const Message& message, int file = -1) {
  iovec data{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (file >= 0) {
    header.msg_control = room.data();
    header.msg_controllen = room.size();
    cmsghdr* const control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(control), &file, sizeof file);
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
}

// Leaves *file as it is where the message has none.
template <class Message>
bool Receive(int socket, Message* message, int* file) {
  iovec data{message, sizeof *message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = room.data();
  header.msg_controllen = room.size();
  if (recvmsg(socket, &header, 0) != static_cast<ssize_t>(sizeof *message)) return false;
  if (const cmsghdr* const control = CMSG_FIRSTHDR(&header)) std::memcpy(file, CMSG_DATA(control), sizeof *file);
  return true;
}

}  // namespace passed_files

#endif  // SLUICE_TEST_LIB_PASSED_FILES_H_
