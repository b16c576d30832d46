// For tests of the driver's tools device: a descriptor that may be refused, and its structures by offset.
#ifndef SLUICE_TEST_UNIT_FAKE_UVM_TOOLS_H_
#define SLUICE_TEST_UNIT_FAKE_UVM_TOOLS_H_

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

struct FakeUvmTools {
  int open_error = 0;  // errno; 0: it opens
  int opened = -1;     // the newest descriptor
  int Open() {
    errno = open_error;
    return open_error ? -1 : opened = dup(0);
  }
};

template <typename T>
T At(const void* argument, size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(argument) + offset, sizeof value);
  return value;
}

// Writes a request's status.
inline int SetStatus(void* argument, size_t offset, uint32_t status) {
  std::memcpy(static_cast<char*>(argument) + offset, &status, sizeof status);
  return 0;
}

#endif  // SLUICE_TEST_UNIT_FAKE_UVM_TOOLS_H_
