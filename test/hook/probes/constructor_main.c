/* Some threads load a library whose constructor enters the hook; others enter it by dlsym at the same time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static pthread_barrier_t barrier;
static int good;

static void* load(void* unused) {
  (void)unused;
  pthread_barrier_wait(&barrier);
  void* h = dlopen("libconstructor.so", RTLD_NOW);
  const int* constructed = h ? (const int*)dlsym(h, "constructed") : NULL;
  __atomic_fetch_add(&good, constructed && *constructed == 100001, __ATOMIC_RELAXED);
  return NULL;
}

static void* look_up(void* unused) {
  (void)unused;
  pthread_barrier_wait(&barrier);
  void* h = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned) = h ? (int (*)(unsigned))dlsym(h, "cuInit") : NULL;
  __atomic_fetch_add(&good, init && init(2) == 100002, __ATOMIC_RELAXED);
  return NULL;
}

int main(void) {
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  pthread_barrier_init(&barrier, NULL, THREADS);
  for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, i % 4 ? &look_up : &load, NULL);
  for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  printf("%d\n", good);
  return 0;
}
