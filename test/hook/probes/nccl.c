/* Built as libnccl.so.2 and as libordinary.so: a library that allocates. */
#include <stddef.h>
int cuMemAlloc_v2(unsigned long* pointer, size_t bytes);
int FUNCTION(void);
int FUNCTION(void) {
  unsigned long p;
  const int result = cuMemAlloc_v2(&p, 1);
  return result; /* no tail call: the return address must be this library's */
}
