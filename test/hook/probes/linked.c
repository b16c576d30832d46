/* Linked against libcuda: its calls go to the shim's trampolines. Prints one number for each call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuMemAlloc_v2(unsigned long* pointer, size_t bytes);
int cuMemcpyHtoD(unsigned to, const void* from, unsigned bytes);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

int main(int argc, char** argv) {
  unsigned long p;
  printf("%d %d %d %d\n", cuInit(0), cuMemAlloc_v2(&p, 1), cuMemcpyHtoD(0, NULL, 0),
         cuLaunchKernel((void*)1, 2, 3, 4, 5, 6, 7, 8, (void*)9, (void*)10, (void*)11));
  fflush(stdout);
  if (argc > 1 && !strcmp(argv[1], "fork")) {
    if (fork() == 0) {
      printf("child %d\n", cuMemAlloc_v2(&p, 1));
      fflush(stdout);
      _exit(0);
    }
    wait(NULL);
  }
  if (argc > 1 && !strcmp(argv[1], "exec")) {
    fflush(stdout);
    execl(argv[0], argv[0], (char*)NULL); /* NOLINT(clang-analyzer-optin.taint.GenericTaint): itself */
    return 1;
  }
  return 0;
}
