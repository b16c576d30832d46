/* Two libraries that define the same names. Built as libnext1.so and libnext2.so: each has its own answer and can look
 * the next definition up. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int sluice_probe(void);
int sluice_probe(void) { return NUMBER; }
#define GLUE(a, b) a##b
#define NAMED(a, b) GLUE(a, b)
/* A name that is not hooked: the tail call into the real dlsym finds it. */
int NAMED(next_probe_, NUMBER)(void);
int NAMED(next_probe_, NUMBER)(void) {
  int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "sluice_probe");
  return next ? next() : -1;
}
/* A hooked name. */
int NAMED(next_init_, NUMBER)(void);
int NAMED(next_init_, NUMBER)(void) {
  int (*next)(unsigned) = (int (*)(unsigned))dlsym(RTLD_NEXT, "cuInit");
  int (*again)(unsigned) = (int (*)(unsigned))dlsym(RTLD_NEXT, "cuInit");
  return next && next == again ? next(3) : -1;
}
