#include <stdio.h>
int next_probe_1(void), next_probe_2(void), next_init_1(void), next_init_2(void);
int main(void) {
  printf("%d %d %d %d\n", next_probe_1(), next_probe_2(), next_init_1(), next_init_2());
  return 0;
}
