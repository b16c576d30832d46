/* dlsym, dlvsym, dlopen. Names that are not hooked go on by a tail call: the real functions find the caller by their
 * return address, and its RTLD_NEXT, RTLD_DEFAULT or RPATH applies. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "hooklib/shim/shim.h"

#if defined(__clang__)
#define TAIL_CALL __attribute__((musttail))
#else
#define TAIL_CALL /* gcc -O2 makes a sibling call of it; test/hook proves it for the shipped file */
#endif

static int starts_with(const char* text, const char* prefix) {
  while (*prefix && *text == *prefix) ++text, ++prefix;
  return !*prefix;
}

static const char* base_of(const char* file) {
  const char* base = file;
  for (const char* c = file; *c; ++c) {
    if (*c == '/') base = c + 1;
  }
  return base;
}

/* Whether `file` names a library that is hooked. */
static int is_hooked_library(const char* file) {
  const char* const base = base_of(file);
  return starts_with(base, "libcuda.so") || starts_with(base, "libnvidia-ml.so") || starts_with(base, "libcudnn") ||
         starts_with(base, "libcublas");
}

/* A libcuda that loads another one and passes calls on, as WSL2's. The program's calls to it are hooked. Its own calls
 * to the other one are not, or a call would be hooked twice. */
static int is_driver(const void* caller) {
  struct shim_object object;
  return shim_object_at(caller, &object) && starts_with(base_of(object.path), "libcuda.so");
}

/* The driver's function as this caller's look-up would find it without the shim. */
static __attribute__((noinline)) void* found_without_us(void* handle, int row, const char* name, const void* caller) {
  const shim_dlsym_fn real = shim_real_dlsym();
  if (handle == RTLD_NEXT) return shim_find_after(caller, name);
  if (handle != RTLD_DEFAULT) {
    void* const found = real(handle, name);
    if (!found || !shim_is_self(found)) return found;
    /* A handle of the whole program: its scope begins with the shim. */
  }
  void* const global = real(RTLD_NEXT, name);
  if (global) return global;
  /* Not in the global scope; RTLD_DEFAULT also sees the caller's own dependencies. */
  struct shim_object object;
  if (handle != RTLD_DEFAULT || !shim_object_at(caller, &object) || !object.path[0]) return NULL;
  const shim_dlopen_fn open = shim_real_dlopen();
  void* const own = open ? open(object.path, RTLD_NOLOAD | RTLD_LAZY) : NULL;
  void* const found = own ? real(own, name) : NULL;
  shim_close(own); /* the caller's own object, which stays loaded while it calls */
  (void)row;
  return found && !shim_is_self(found) ? found : NULL;
}

static __attribute__((noinline)) void* answer(void* handle, int row, const char* name, const void* caller) {
  void* const real = found_without_us(handle, row, name, caller);
  if (!real) return NULL;
  if (row < ROW_CUDA_END && is_driver(caller)) {
    shim_clear_error();
    return real;
  }
  void* const given = row < ROW_NVML_END ? shim_substitute(row, real) : shim_library_answer(row, real, caller);
  shim_clear_error();
  return given;
}

/* The shim's own names: programs look dlsym up to call it, and their calls must not bypass the shim. */
static __attribute__((noinline)) void* own_name(void* handle, int row, const char* name) {
  if (handle == RTLD_NEXT) return NULL; /* another interposer looks for the next definition */
  void* const real = shim_real_dlsym()(handle, name);
  if (real == NULL) return NULL;
  if (row == ROW_dlsym && real == (void*)shim_real_dlsym()) return (void*)&dlsym;
  if (row == ROW_dlvsym && real == (void*)shim_real_dlvsym()) return (void*)&dlvsym;
  if (row == ROW_dlopen && real == (void*)shim_real_dlopen()) return (void*)&dlopen;
  return real;
}

SHIM_EXPORT void* dlsym(void* restrict handle, const char* restrict name) {
  const shim_dlsym_fn real = shim_real_dlsym();
  if (!real) return NULL;
  const int row = shim_row_of(name);
  if (row >= 0 && row < ROW_REPORT_END) return answer(handle, row, name, __builtin_return_address(0));
  if (row >= ROW_REPORT_END) {
    void* const own = own_name(handle, row, name);
    if (own) return own;
  }
  TAIL_CALL return real(handle, name);
}

SHIM_EXPORT void* dlvsym(void* restrict handle, const char* restrict name, const char* restrict version) {
  const shim_dlvsym_fn real = shim_real_dlvsym();
  if (!real) return NULL;
  const int row = shim_row_of(name);
  if (row < 0 || row >= ROW_REPORT_END) TAIL_CALL return real(handle, name, version);
  if (handle == RTLD_NEXT) return answer(handle, row, name, __builtin_return_address(0));
  /* From here RTLD_NEXT means the global scope without the shim. */
  void* const found = real(handle == RTLD_DEFAULT ? RTLD_NEXT : handle, name, version);
  if (!found) return NULL;
  if (shim_is_self(found) || row >= ROW_NVML_END || is_driver(__builtin_return_address(0)))
    return answer(handle, row, name, __builtin_return_address(0));
  void* const given = shim_substitute(row, found);
  shim_clear_error();
  return given;
}

/* Nothing needs to be looked up here: a program calls an opened library through dlsym, or it links the library and
 * calls the shim's trampolines. Only RTLD_DEEPBIND lets a hooked library's own references bypass the shim, so those
 * libraries are opened without it. */
SHIM_EXPORT void* dlopen(const char* file, int flags) {
  const shim_dlopen_fn real = shim_real_dlopen();
  if (!real) return NULL;
  if ((flags & RTLD_DEEPBIND) && file && is_hooked_library(file)) flags &= ~RTLD_DEEPBIND;
  TAIL_CALL return real(file, flags);
}
