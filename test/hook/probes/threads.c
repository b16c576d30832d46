/* Threads that enter at the same time, by a trampoline or by dlsym, and threads that still call while main returns. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuMemAlloc_v2(unsigned long* pointer, size_t bytes);
static pthread_barrier_t barrier;
static int good;

static void* enter(void* arg) {
  unsigned long p;
  pthread_barrier_wait(&barrier);
  const long i = (long)arg;
  int ok;
  if (i % 2) {
    ok = cuMemAlloc_v2(&p, 1) >= 100000;
  } else {
    void* h = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = h ? (int (*)(unsigned))dlsym(h, "cuInit") : NULL;
    ok = init && init(0) == 100000;
  }
  __atomic_fetch_add(&good, ok, __ATOMIC_RELAXED);
  return NULL;
}

static void* keep_calling(void* arg) {
  (void)arg;
  unsigned long p;
  for (;;) cuMemAlloc_v2(&p, 1);
  return NULL;
}

int main(void) {
  pthread_t threads[16];
  pthread_barrier_init(&barrier, NULL, 16);
  for (long i = 0; i < 16; ++i) pthread_create(&threads[i], NULL, &enter, (void*)i);
  for (int i = 0; i < 16; ++i) pthread_join(threads[i], NULL);
  printf("%d\n", good);
  for (int i = 0; i < 4; ++i) {
    pthread_create(&threads[i], NULL, &keep_calling, NULL);
    pthread_detach(threads[i]);
  }
  usleep(2000);
  return 0; /* while they call */
}
