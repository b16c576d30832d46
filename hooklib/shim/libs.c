/* Functions of cuDNN, cuBLAS, cuBLASLt. A process may hold two versions of such a library, each loaded RTLD_LOCAL by
 * its package. A call goes to the copy that the calling object depends on, or to the one whose handle dlsym was given.
 * The return address identifies the calling object. A library that reaches these functions by a tail call is therefore
 * taken for its own caller, which matters only where two versions are loaded. */
#include "hooklib/shim/shim.h"

#define RTLD_LAZY_NOLOAD (0x1 | 0x4)
#define ROWS (ROW_LIB_END - ROW_NVML_END)
_Static_assert(ROW_LIB_END < SHIM_BOUND_BASE && ROWS * SHIM_COPIES < 65536, "trampolines hold 16 bits of row");

static void* copies[ROWS > 0 ? ROWS : 1][SHIM_COPIES]; /* targets of the bound trampolines */
static void* entries[ROWS > 0 ? ROWS : 1];             /* the engine's; &none: it has none */
static char none;

/* Initial-exec: a preloaded object's thread storage is laid out at start, so no function is needed to find it. */
static __thread void* current_real __attribute__((tls_model("initial-exec")));

void* shim_library_real(void) { return current_real; }

/* CUDNN_STATUS_NOT_SUPPORTED (9.x) and CUBLAS_STATUS_NOT_SUPPORTED. */
static int cudnn_not_supported(void) { return 3000; }
static int cublas_not_supported(void) { return 15; }

static int starts_with(const char* text, const char* prefix) {
  while (*prefix && *text == *prefix) ++text, ++prefix;
  return !*prefix;
}

/* The libraries call themselves and each other by these names. Only a call from outside is an application's. */
static int is_library(const char* path) {
  const char* base = path;
  for (const char* c = path; *c; ++c) {
    if (*c == '/') base = c + 1;
  }
  return starts_with(base, "libcudnn") || starts_with(base, "libcublas");
}

/* The engine's entry for `real` where there is one, else `real`. */
static void* entry_or_real(int row, void* real) {
  if (!shim_engine_ready()) return real;
  void* entry = __atomic_load_n(&entries[row - ROW_NVML_END], __ATOMIC_RELAXED);
  if (!entry) {
    entry = sluice_shim_link.engine.library_entry(shim_name_of(row));
    if (!entry) entry = &none;
    __atomic_store_n(&entries[row - ROW_NVML_END], entry, __ATOMIC_RELAXED);
  }
  if (entry == &none) return real;
  current_real = real;
  return entry;
}

void* shim_library_answer(int row, void* real, const void* caller) {
  struct shim_object object;
  if (row >= ROW_LIB_END || shim_unhooked()) return real;
  if (shim_object_at(caller, &object) && is_library(object.path)) return real;
  void** const mine = copies[row - ROW_NVML_END];
  for (int copy = 0; copy < SHIM_COPIES; ++copy) {
    void* expected = NULL;
    if (__atomic_compare_exchange_n(&mine[copy], &expected, real, 0, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE) ||
        expected == real) {
      return shim_bound + 16 * ((row - ROW_NVML_END) * SHIM_COPIES + copy);
    }
  }
  return real; /* a fifth copy: its calls work, and are not hooked */
}

void* shim_bound_target(int bound) {
  const int row = ROW_NVML_END + bound / SHIM_COPIES;
  return entry_or_real(row, __atomic_load_n(&copies[bound / SHIM_COPIES][bound % SHIM_COPIES], __ATOMIC_ACQUIRE));
}

/* Call sites with their library. A slot is filled once and stays: the handle that found the library keeps it loaded. */
#define SITES 2048u
#define MAX_PROBES 8u
enum { SITE_EMPTY, SITE_FILLING, SITE_READY };
static struct site {
  const void* caller;
  void* real;
  int row, internal, state;
} sites[SITES];

static void* find(int row, const void* caller, int* internal) {
  const shim_dlsym_fn sym = shim_need_dl() ? shim_real_dlsym() : NULL;
  const shim_dlopen_fn open = shim_real_dlopen();
  struct shim_object object;
  *internal = 0;
  if (!sym || !open) return shim_find_after(NULL, shim_name_of(row));
  if (shim_object_at(caller, &object) && object.path[0]) {
    *internal = is_library(object.path);
    void* const handle = open(object.path, RTLD_LAZY_NOLOAD);
    void* const found = handle ? sym(handle, shim_name_of(row)) : NULL;
    if (found && !shim_is_self(found)) return found;
  }
  void* const global = sym((void*)-1l /* RTLD_NEXT: the global scope behind the shim */, shim_name_of(row));
  return global ? global : shim_find_after(NULL, shim_name_of(row));
}

void* shim_library_target(int row, const void* caller) {
  const uintptr_t mixed = ((uintptr_t)caller >> 2) * 31u + (uintptr_t)row * 1031u;
  struct site* free_site = NULL;
  for (unsigned probe = 0; probe < MAX_PROBES; ++probe) {
    struct site* s = &sites[(mixed + probe) % SITES];
    const int state = __atomic_load_n(&s->state, __ATOMIC_ACQUIRE);
    if (state == SITE_READY && s->caller == caller && s->row == row)
      return s->internal ? s->real : entry_or_real(row, s->real);
    if (state == SITE_EMPTY) {
      free_site = s;
      break;
    }
  }
  int internal = 0, empty = SITE_EMPTY;
  void* const real = find(row, caller, &internal);
  if (!real)
    return starts_with(shim_name_of(row), "cudnn") ? (void*)&cudnn_not_supported : (void*)&cublas_not_supported;
  if (free_site &&
      __atomic_compare_exchange_n(&free_site->state, &empty, SITE_FILLING, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    free_site->caller = caller;
    free_site->real = real;
    free_site->row = row;
    free_site->internal = internal;
    __atomic_store_n(&free_site->state, SITE_READY, __ATOMIC_RELEASE);
  }
  return internal ? real : entry_or_real(row, real);
}
