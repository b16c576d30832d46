/* opener FILE FLAGS LOOKUP: opens the driver with the flags (a number), looks cuInit up and calls it. LOOKUP: dlsym,
 * dlvsym, dlvsym-default, default, next, whole (a handle of the program), proc (through cuGetProcAddress_v2), self
 * (cuGetProcAddress asked for itself), unloaded (looks up without opening), dlsym-of-dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*init_fn)(unsigned);
typedef int (*get_fn)(const char*, void**, int, unsigned long long, int*);

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const char* lookup = argv[3];
  void* handle = NULL;
  if (strcmp(lookup, "unloaded") != 0) {
    handle = dlopen(argv[1], atoi(argv[2])); /* NOLINT(clang-analyzer-optin.taint.GenericTaint): the test's choice */
    if (!handle) {
      printf("not opened: %s\n", dlerror());
      return 1;
    }
  }
  init_fn init = NULL;
  if (!strcmp(lookup, "dlsym")) init = (init_fn)dlsym(handle, "cuInit");
  if (!strcmp(lookup, "dlvsym")) init = (init_fn)dlvsym(handle, "cuInit", "FAKE_1");
  if (!strcmp(lookup, "dlvsym-default")) init = (init_fn)dlvsym(RTLD_DEFAULT, "cuInit", "FAKE_1");
  if (!strcmp(lookup, "default") || !strcmp(lookup, "unloaded")) init = (init_fn)dlsym(RTLD_DEFAULT, "cuInit");
  if (!strcmp(lookup, "next")) init = (init_fn)dlsym(RTLD_NEXT, "cuInit");
  if (!strcmp(lookup, "whole")) init = (init_fn)dlsym(dlopen(NULL, RTLD_NOW), "cuInit");
  if (!strcmp(lookup, "dlsym-of-dlsym")) {
    void* (*look)(void*, const char*) = (void* (*)(void*, const char*))dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
    if (!look) look = (void* (*)(void*, const char*))dlsym(dlopen("libdl.so.2", RTLD_NOW), "dlsym");
    init = (init_fn)look(handle, "cuInit");
  }
  if (!strcmp(lookup, "proc") || !strcmp(lookup, "self")) {
    get_fn get = (get_fn)dlsym(handle, "cuGetProcAddress_v2");
    void* found = NULL;
    int status = -1;
    if (!strcmp(lookup, "self")) {
      if (get("cuGetProcAddress", &found, 12000, 0, &status) != 0 || status != 0) return 3;
      get = (get_fn)found;
    }
    if (get("cuInit", &found, 13000, 0, &status) != 0 || status != 0) return 4;
    init = (init_fn)found;
  }
  if (!init) {
    printf("null\n");
    return 0;
  }
  const char* left = dlerror();
  if (left) printf("an error is left: %s\n", left);
  printf("%d\n", init(7));
  /* A missing name stays missing, with its error. */
  if (handle && dlsym(handle, "cuMemNoSuchThing") == NULL && dlerror() == NULL) printf("no error text\n");
  return 0;
}
