/* Loads the engine, and decides where a hooked call goes with and without it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>

#include "hooklib/shim/shim.h"
#include "sluice/names.h"
#include "sluice/version.h"

extern char** environ __attribute__((weak));
extern unsigned long getauxval(unsigned long type) __attribute__((weak));

/* The engine's constructor finds it by name. */
SHIM_EXPORT struct sluice_shim_state sluice_shim_link = {.abi = SLUICE_SHIM_ABI, .version = SLUICE_VERSION};

static int state = SHIM_UNTRIED; /* enum shim_state */

const char* shim_variable(const char* name) {
  if (&environ == NULL || environ == NULL) return NULL;
  for (char** e = environ; *e; ++e) {
    const char *a = *e, *b = name;
    while (*b && *a == *b) ++a, ++b;
    if (!*b && *a == '=') return a + 1;
  }
  return NULL;
}

static int equals(const char* value, const char* word) {
  if (!value) return 0;
  while (*word && *value == *word) ++value, ++word;
  return *value == *word;
}

struct text {
  char bytes[1024];
  unsigned length;
};
static void append(struct text* t, const char* s) {
  while (s && *s && t->length + 1 < sizeof t->bytes) t->bytes[t->length++] = *s++;
  t->bytes[t->length] = 0;
}

/* $SLUICE_ENGINE, else beside the shim. */
static void engine_path(struct text* out) {
  const char* given = shim_variable(SLUICE_ENV_ENGINE);
  if (given && given[0]) {
    append(out, given);
    return;
  }
  struct shim_object self;
  if (shim_object_at((const void*)&engine_path, &self)) append(out, self.path);
  while (out->length > 0 && out->bytes[out->length - 1] != '/') --out->length;
  out->bytes[out->length] = 0;
  append(out, SLUICE_ENGINE_NAME);
}

static void set_state_once(int to) {
  int untried = SHIM_UNTRIED;
  __atomic_compare_exchange_n(&state, &untried, to, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static void fail(const char* path, const char* why) {
  const char* policy = shim_variable(SLUICE_ENV_ON_ERROR);
  const int stop = equals(policy, "stop");
  int untried = SHIM_UNTRIED;
  if (!__atomic_compare_exchange_n(&state, &untried, stop ? SHIM_STOPPED : SHIM_UNHOOKED, 0, __ATOMIC_RELEASE,
                                   __ATOMIC_RELAXED)) {
    return; /* another thread has logged it */
  }
  struct text line = {.length = 0};
  append(&line, "engine not loaded from ");
  append(&line, path);
  append(&line, ": ");
  append(&line, why);
  shim_notify_agent(line.bytes);
  append(&line, stop ? "; CUDA calls fail (" SLUICE_ENV_ON_ERROR "=stop)" : "; this process runs without limits");
  /* A loaded engine logs this itself (hooklib/engine/config.cc). */
  if (policy && policy[0] && !stop && !equals(policy, "run"))
    append(&line, "; " SLUICE_ENV_ON_ERROR " accepts: run, stop");
  const char* off = shim_variable(SLUICE_ENV_DISABLE);
  if (off && off[0] && !equals(off, "0")) append(&line, "; " SLUICE_ENV_DISABLE " accepts: 0, 1");
  shim_log_error(line.bytes);
}

static void load(void) {
  /* A setuid program must not load a library that its caller's environment names. */
  if (equals(shim_variable(SLUICE_ENV_DISABLE), "1") || (getauxval && getauxval(AT_SECURE))) {
    set_state_once(SHIM_UNHOOKED);
    return;
  }
  if (!shim_need_dl()) return;
  const shim_dlopen_fn open = shim_real_dlopen();
  const shim_dlsym_fn sym = shim_real_dlsym();
  struct sluice_shim_state* link = &sluice_shim_link;
  uint64_t table = 0;
  for (int row = 0; row < ROW_NVML_END; ++row) table = sluice_table_hash(table, shim_name_of(row));
  link->shim.table = table;
  link->shim.dlsym = sym;
  link->shim.dlopen = open;
  link->shim.library_real = &shim_library_real;
  link->shim.log_warning = &shim_log_warning;

  struct text path = {.length = 0};
  engine_path(&path);
  /* Called without a lock: the loader's own orders threads, and the engine starts in its constructor. */
  if (!open(path.bytes, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
    char* (*const error)(void) = (char* (*)(void))shim_find_after(NULL, "dlerror");
    const char* why = error ? error() : NULL;
    fail(path.bytes, why ? why : "dlopen failed");
    return;
  }
  switch (__atomic_load_n(&link->status, __ATOMIC_ACQUIRE)) {
    case SLUICE_ENGINE_READY:
      set_state_once(SHIM_READY);
      break;
    case SLUICE_ENGINE_REFUSED:
      fail(path.bytes, link->reason);
      break;
    case SLUICE_ENGINE_STARTING:
      break; /* its constructor is running, further up on this stack */
    default: /* it is loaded and has not found sluice_shim_link */
      fail(path.bytes, "it is no engine for this shim (sluice " SLUICE_VERSION ")");
      break;
  }
}

int shim_engine_ready(void) { return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == SHIM_READY; }

int shim_unhooked(void) { return __atomic_load_n(&state, __ATOMIC_ACQUIRE) >= SHIM_UNHOOKED; }

const struct sluice_engine_api* shim_engine(void) {
  if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == SHIM_UNTRIED) load();
  return shim_engine_ready() ? &sluice_shim_link.engine : NULL;
}

static int stopped(void) { return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == SHIM_STOPPED; }

/* Stand in for functions that cannot be called; they ignore their parameters. */
static int cuda_not_ready(void) { return 802; } /* CUDA_ERROR_SYSTEM_NOT_READY */
static int cuda_not_found(void) { return 500; } /* CUDA_ERROR_NOT_FOUND */
static int cuda_no_device(void) { return 100; } /* CUDA_ERROR_NO_DEVICE */
static int nvml_not_loaded(void) { return 9; }  /* NVML_ERROR_DRIVER_NOT_LOADED */
static int nvml_not_found(void) { return 13; }  /* NVML_ERROR_FUNCTION_NOT_FOUND */

static void* stop_stub(int row) { return row < ROW_CUDA_END ? (void*)&cuda_not_ready : (void*)&nvml_not_loaded; }

void* shim_substitute(int row, void* real) {
  if (row >= ROW_NVML_END) return real;
  const struct sluice_engine_api* engine = shim_engine();
  if (!engine) return stopped() ? stop_stub(row) : real;
  return row < ROW_CUDA_END ? engine->cuda_entry((unsigned)row, real)
                            : engine->nvml_entry((unsigned)(row - ROW_CUDA_END), real);
}

void* shim_find_real(int row, const void* caller) {
  if (!shim_need_dl()) return shim_find_after(NULL, shim_name_of(row));
  const shim_dlopen_fn open = shim_real_dlopen();
  const shim_dlsym_fn sym = shim_real_dlsym();
  void* handle = NULL;
  if (row < ROW_NVML_END) {
    handle = open(row < ROW_CUDA_END ? "libcuda.so.1" : "libnvidia-ml.so.1", RTLD_NOLOAD | RTLD_LAZY);
  }
  struct shim_object object;
  if (!handle && shim_object_at(caller, &object) && object.path[0]) handle = open(object.path, RTLD_NOLOAD | RTLD_LAZY);
  void* const found = handle ? sym(handle, shim_name_of(row)) : NULL;
  if (found && !shim_is_self(found)) return found; /* callers keep it, so the handle stays */
  shim_close(handle);
  return shim_find_after(NULL, shim_name_of(row));
}

/* A weak reference to a CUDA function is never null, because the shim defines it. Without a libcuda the program
 * expects the answer of a machine without a GPU; a libcuda that lacks the function is another matter. */
static void* cuda_absent(const void* caller) {
  return shim_find_real(ROW_cuInit, caller) ? (void*)&cuda_not_found : (void*)&cuda_no_device;
}

/* The target of a trampoline of CUDA or NVML. Never NULL. *cache: whether it is final. */
static void* driver_target(int row, const void* caller, int* cache) {
  *cache = 1;
  const struct sluice_engine_api* engine = shim_engine();
  void* target = NULL;
  if (engine) {
    target = row < ROW_CUDA_END ? engine->cuda_entry((unsigned)row, NULL)
                                : engine->nvml_entry((unsigned)(row - ROW_CUDA_END), NULL);
  } else if (stopped()) {
    target = stop_stub(row);
  } else {
    target = shim_find_real(row, caller);
  }
  if (!target) {
    *cache = 0; /* the library may be loaded later */
    return row < ROW_CUDA_END ? cuda_absent(caller) : (void*)&nvml_not_found;
  }
  if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == SHIM_UNTRIED) *cache = 0;
  return target;
}

/* Called by the trampolines' slow path. */
void* shim_resolve(int row, const void* caller) __attribute__((visibility("hidden")));
void* shim_resolve(int row, const void* caller) {
  if (row >= SHIM_BOUND_BASE) return shim_bound_target(row - SHIM_BOUND_BASE);
  if (row >= ROW_NVML_END) return shim_library_target(row, caller);
  int cache = 0;
  void* const target = driver_target(row, caller, &cache);
  shim_clear_error();
  if (cache) __atomic_store_n(&shim_slots[row], target, __ATOMIC_RELEASE);
  return target;
}
