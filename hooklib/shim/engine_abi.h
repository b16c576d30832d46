/* The interface between shim and engine. Both come from one build. That is checked, because an image may contain one
 * file and mount the other: the link begins with a head that never changes, which names the shim's build and the
 * engine's status.
 *
 * The shim dlopens the engine. The engine's constructor finds `sluice_shim_link` (exported by the shim, weak in the
 * engine), fills its engine half and sets status. It happens in the constructor on purpose: the loader's lock is then
 * taken before any of ours, so a thread that runs another library's constructor inside dlopen cannot deadlock. */
#ifndef SLUICE_HOOKLIB_SHIM_ENGINE_ABI_H_
#define SLUICE_HOOKLIB_SHIM_ENGINE_ABI_H_

#include <stdint.h>

/* The version of everything below the head. */
#ifndef SLUICE_SHIM_ABI
#define SLUICE_SHIM_ABI 5
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The C library's own functions: the engine's references to these names would bind to the shim. */
struct sluice_shim_api {
  uint64_t table; /* sluice_table_hash over the rows of CUDA and NVML that the shim was built with */
  void* (*dlsym)(void* handle, const char* name);
  void* (*dlopen)(const char* file, int flags);
  /* For an entry of another library's function, before anything else: the function that it replaces. */
  void* (*library_real)(void);
  void (*log_warning)(const char* text); /* one line on stderr */
};

struct sluice_engine_api {
  /* The program's replacement of the driver's function `real` for row `index` of hooks.def; `real` itself where it is
   * not from the libcuda that the engine is bound to. With real == NULL (a call through a trampoline): the entry, or
   * NULL where this driver lacks the function. */
  void* (*cuda_entry)(unsigned index, void* real);
  void* (*nvml_entry)(unsigned index, void* real);
  /* The entry for a SLUICE_LIB row, or NULL: the call goes straight to the library. */
  void* (*library_entry)(const char* symbol);
  /* PyTorch's allocator report. */
  void (*allocator_report)(void* ptr, long size, signed char device_type, signed char device_index);
};

enum sluice_engine_status {
  SLUICE_ENGINE_SILENT = 0, /* no engine has found the link */
  SLUICE_ENGINE_READY = 1,
  SLUICE_ENGINE_REFUSED = 2,
  SLUICE_ENGINE_STARTING = 3
};

struct sluice_shim_state {
  /* The head, which never changes. */
  uint32_t abi;     /* the shim's */
  uint32_t status;  /* enum sluice_engine_status, written last by the engine */
  char version[32]; /* of sluice, the shim's */
  char reason[128]; /* with SLUICE_ENGINE_REFUSED */
  /* From here on, both sides have the same ABI. */
  struct sluice_shim_api shim;
  struct sluice_engine_api engine;
};

/* Rows are identified by their index, so both sides must have the same rows in the same order: FNV-1a over their names.
 */
static inline uint64_t sluice_table_hash(uint64_t so_far, const char* name) {
  uint64_t hash = so_far ? so_far : 14695981039346656037u;
  do {
    hash = (hash ^ (unsigned char)*name) * 1099511628211u;
  } while (*name++);
  return hash;
}

/* The engine's one exported function. 0, or -1 with reason filled. Called by the constructor; idempotent. */
int sluice_engine_start(struct sluice_shim_state* link);

#ifdef __cplusplus
}
#endif
#endif /* SLUICE_HOOKLIB_SHIM_ENGINE_ABI_H_ */
