/* The C library's own dlsym, dlvsym and dlopen. */
#include "hooklib/shim/shim.h"

/* The next definition behind the shim's own, as RTLD_NEXT returns it to a preloaded object: another interposer's if
 * there is one. Looked up at each use until found: before glibc 2.34, libdl may be loaded later. */
static void* cached(void** slot, const char* name) {
  void* found = __atomic_load_n(slot, __ATOMIC_RELAXED);
  if (!found) {
    found = shim_find_after((const void*)&cached, name);
    if (found) __atomic_store_n(slot, found, __ATOMIC_RELAXED);
  }
  return found;
}

static void *dlsym_slot, *dlvsym_slot, *dlopen_slot;

/* noinline: clang for aarch64 gives up the tail call in dlsym() otherwise. */
__attribute__((noinline)) shim_dlsym_fn shim_real_dlsym(void) { return (shim_dlsym_fn)cached(&dlsym_slot, "dlsym"); }
__attribute__((noinline)) shim_dlvsym_fn shim_real_dlvsym(void) {
  return (shim_dlvsym_fn)cached(&dlvsym_slot, "dlvsym");
}
__attribute__((noinline)) shim_dlopen_fn shim_real_dlopen(void) {
  return (shim_dlopen_fn)cached(&dlopen_slot, "dlopen");
}

int shim_need_dl(void) {
  if (shim_real_dlopen() && shim_real_dlsym()) return 1;
  /* glibc before 2.34, and nothing has loaded libdl: glibc's private function for it, which later versions lack. */
  void* (*const open_mode)(const char*, int) = (void* (*)(const char*, int))shim_find_after(NULL, "__libc_dlopen_mode");
  if (open_mode) open_mode("libdl.so.2", (int)0x80000002u /* __RTLD_DLOPEN | RTLD_NOW */);
  return shim_real_dlopen() && shim_real_dlsym();
}

void shim_close(void* handle) {
  static void* slot;
  int (*const close)(void*) = handle ? (int (*)(void*))cached(&slot, "dlclose") : NULL;
  if (close) close(handle);
}

void shim_clear_error(void) {
  static void* slot;
  char* (*const error)(void) = (char* (*)(void))cached(&slot, "dlerror");
  if (error) error();
}
