// Preloaded into the plugin by the tests: ends the process, as kill -9 would, right before a chosen act. An act is a
// call that changes anything outside the process (folder, file, socket, message). So the acts are all the points at
// which a kill can make a difference.
//
// $SLUICE_KILL_POINT names a file that holds a struct KillPoint, shared with the test.
#define _GNU_SOURCE
#include "kill_point.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static struct KillPoint* shared;

__attribute__((constructor)) static void attach(void) {
  const char* path = getenv("SLUICE_KILL_POINT");
  const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory != MAP_FAILED) shared = memory;
}

static void act(const char* what, const char* on) {
  if (!shared || !__atomic_load_n(&shared->armed, __ATOMIC_ACQUIRE)) return;
  char name[KILL_POINT_NAME];
  const char* slash = on ? strrchr(on, '/') : NULL;
  snprintf(name, sizeof name, "%s %s", what, slash ? slash + 1 : on ? on : "");
  name[strcspn(name, "0123456789")] = 0;
  const int index = __atomic_fetch_add(&shared->acts, 1, __ATOMIC_ACQ_REL);
  if (index < KILL_POINT_ACTS) memcpy(shared->seen[index], name, sizeof name);
  if (strcmp(name, shared->name) != 0) return;
  if (__atomic_add_fetch(&shared->matched, 1, __ATOMIC_ACQ_REL) != shared->ordinal) return;
  shared->killed = 1;
  kill(getpid(), SIGKILL);
}

#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                  \
  int name(const char* path, int flags, ...) {                      \
    va_list list;                                                   \
    va_start(list, flags);                                          \
    const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0; \
    va_end(list);                                                   \
    if (flags & O_CREAT) act("create", path);                       \
    return openat(AT_FDCWD, path, flags, mode);                     \
  }
OPEN(open)
OPEN(open64)

int mkdir(const char* path, mode_t mode) {
  act("mkdir", path);
  return REAL(mkdir)(path, mode);
}
int chmod(const char* path, mode_t mode) {
  act("chmod", path);
  return REAL(chmod)(path, mode);
}
int rename(const char* from, const char* to) {
  act("rename", to);
  return REAL(rename)(from, to);
}
int unlink(const char* path) {
  act("unlink", path);
  return REAL(unlink)(path);
}
int unlinkat(int dir, const char* path, int flags) {
  act("unlinkat", path);
  return REAL(unlinkat)(dir, path, flags);
}
int remove(const char* path) {
  act("remove", path);
  return REAL(remove)(path);
}
int flock(int fd, int operation) {
  act("flock", NULL);
  return REAL(flock)(fd, operation);
}
int bind(int fd, const struct sockaddr* address, socklen_t length) {
  act("bind", NULL);
  return REAL(bind)(fd, address, length);
}
int listen(int fd, int backlog) {
  act("listen", NULL);
  return REAL(listen)(fd, backlog);
}
int connect(int fd, const struct sockaddr* address, socklen_t length) {
  act("connect", NULL);
  return REAL(connect)(fd, address, length);
}
int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
  act("accept", NULL);
  return REAL(accept4)(fd, address, length, flags);
}
ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  act("sendmsg", NULL);
  return REAL(sendmsg)(fd, message, flags);
}
ssize_t write(int fd, const void* bytes, size_t length) {
  struct stat st;
  // Ignore the writes by which gRPC wakes its own threads.
  if (fd > 2 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) act("write", NULL);
  return REAL(write)(fd, bytes, length);
}
