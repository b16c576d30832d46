/* Its main thread ends by pthread_exit, and the program with its last thread. "wait": that thread waits for a signal.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say_goodbye(void) { puts("goodbye"); }

static void* work(void* waits) {
  usleep(100000); /* the main thread has ended */
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*const init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
  printf("cuInit %d\n", init ? init(0) : -1);
  fflush(stdout);
  if (waits) pause();
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t thread;
  atexit(&say_goodbye);
  void* const waits = argc > 1 && !strcmp(argv[1], "wait") ? &thread : NULL;
  if (pthread_create(&thread, NULL, &work, waits) != 0) return 1;
  pthread_exit(NULL);
}
