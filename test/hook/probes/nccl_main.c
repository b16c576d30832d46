#include <stdio.h>
int nccl_allocate(void), ordinary_allocate(void);
int main(void) {
  const int plain = nccl_allocate();
  const int tracked = ordinary_allocate();
  printf("%d %s\n", plain, tracked > 100000 && tracked < 200000 ? "marked" : "not marked");
  return 0;
}
