/* Reports a failure on stderr and to the agent, by bare system calls: another library may have interposed the C
 * library's wrappers. */
#include <fcntl.h>
#include <linux/un.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "hooklib/shim/shim.h"
#include "sluice/names.h"
#include "sluice/version.h"
#include "sluice/wire.h"

static long call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#else
#error "no system call for this architecture"
#endif
}

static void copy(char* to, size_t room, const char* from) {
  for (size_t i = 0; i + 1 < room && from[i]; ++i) to[i] = from[i];
}

/* False for the program's own file under that number, for a full pipe, and for a pipe without a reader, which would end
 * the program (hooklib/engine/observe/log.cc says more). */
static int is_stderr_writable(void) {
  const long flags = call(SYS_fcntl, 2, F_GETFD, 0, 0, 0, 0);
  if (flags < 0 || (flags & FD_CLOEXEC)) return 0;
  struct pollfd room = {.fd = 2, .events = POLLOUT};
  const long at_once[2] = {0, 0}; /* a timespec */
  return call(SYS_ppoll, (long)&room, 1, (long)at_once, 0, 0, 0) > 0 && !(room.revents & POLLERR);
}

static void log_line(const char* level, const char* text) {
  if (!is_stderr_writable()) return;
  char line[1152] = "sluice: ";
  size_t length = 8;
  for (; *level; ++level) line[length++] = *level;
  line[length++] = ' ';
  for (; *text && length + 2 < sizeof line; ++text) line[length++] = *text;
  line[length++] = '\n';
  call(SYS_write, 2, (long)line, (long)length, 0, 0, 0);
}

void shim_log_error(const char* text) { log_line("ERROR", text); }

void shim_log_warning(const char* text) {
  const char* const level = shim_variable(SLUICE_ENV_LOG_LEVEL);
  if (!level || (level[0] != 'E' && level[0] != 'e')) log_line("WARN", text);
}

static void send_frame(int socket, struct sluice_frame* frame, uint16_t type, uint64_t seq) {
  frame->h.magic = SLUICE_WIRE_MAGIC;
  frame->h.major = SLUICE_WIRE_MAJOR;
  frame->h.minor = SLUICE_WIRE_MINOR;
  frame->h.type = type;
  frame->h.seq = seq;
  call(SYS_sendto, socket, (long)frame, (long)sizeof *frame, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
}

void shim_notify_agent(const char* text) {
  const char* path = shim_variable(SLUICE_ENV_SOCKET);
  if (!path || !path[0]) path = SLUICE_CONTAINER_SOCKET;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  copy(address.sun_path, sizeof address.sun_path, path);
  const int socket = (int)call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0, 0, 0);
  if (socket < 0) return;
  if (call(SYS_connect, socket, (long)&address, sizeof address, 0, 0, 0) == 0) {
    struct sluice_frame hello = {.u.hello = {.pid = (int32_t)call(SYS_getpid, 0, 0, 0, 0, 0, 0)}};
    copy(hello.u.hello.version, sizeof hello.u.hello.version, SLUICE_VERSION);
    copy(hello.u.hello.command, sizeof hello.u.hello.command, "(engine not loaded)");
    send_frame(socket, &hello, SLUICE_HELLO, 1);
    struct sluice_frame notice = {.u.notice = {.kind = SLUICE_NOTICE_ENGINE_FAILED}};
    copy(notice.u.notice.text, sizeof notice.u.notice.text, text);
    send_frame(socket, &notice, SLUICE_NOTICE, 2);
  }
  call(SYS_close, socket, 0, 0, 0, 0, 0);
}
