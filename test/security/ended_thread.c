/* A process whose first thread ends while another goes on: ended_thread [SOCKET FRAME]. The other thread then connects
 * to the agent's SOCKET and sends the file FRAME; it waits for a signal. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static char** words;

static void* go_on(void* nothing) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  char frame[256] = {0};
  (void)nothing;
  usleep(300000); /* the first one has ended */
  if (words[1] != NULL && words[2] != NULL) {
    const int s = socket(AF_UNIX, SOCK_SEQPACKET, 0), file = open(words[2], O_RDONLY);
    strncpy(to.sun_path, words[1], sizeof(to.sun_path) - 1);
    if (s >= 0 && read(file, frame, sizeof(frame)) == sizeof(frame) &&
        connect(s, (struct sockaddr*)&to, sizeof(to)) == 0) {
      (void)!send(s, frame, sizeof(frame), 0);
    }
  }
  for (;;) pause();
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t thread;
  (void)argc;
  words = argv;
  if (pthread_create(&thread, NULL, go_on, NULL) != 0) return 1;
  syscall(SYS_exit, 0); /* of this thread alone */
  return 0;
}
