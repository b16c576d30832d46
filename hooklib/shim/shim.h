/* Inside the shim. Rules keep it loadable everywhere; each was seen to break something: no DT_NEEDED, no versioned
 * symbol, no constructor, no stdio, no libc function beyond the allow-list of test/hook/check_ship, no thread, no
 * allocation. The shim must not call the libc functions that it exports itself: the call would return to the shim. */
#ifndef SLUICE_HOOKLIB_SHIM_SHIM_H_
#define SLUICE_HOOKLIB_SHIM_SHIM_H_

#include <stddef.h>
#include <stdint.h>

#include "hooklib/shim/engine_abi.h"

#define SHIM_EXPORT __attribute__((visibility("default")))

/* Rows in hooks.def's order: CUDA, NVML, other libraries, reports, then the loader's own names. */
enum shim_row {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) ROW_##elf_name,
#include "hooklib/hooks.def"
  ROW_CUDA_END,
  ROW_BEFORE_NVML = ROW_CUDA_END - 1,
#define SLUICE_NVML(name) ROW_##name,
#include "hooklib/hooks.def"
  ROW_NVML_END,
  ROW_BEFORE_LIB = ROW_NVML_END - 1,
#define SLUICE_LIB(symbol, soname_prefix) ROW_##symbol,
#include "hooklib/hooks.def"
  ROW_LIB_END,
  ROW_BEFORE_REPORT = ROW_LIB_END - 1,
#define SLUICE_REPORT(symbol, soname) ROW_##symbol,
#include "hooklib/hooks.def"
  ROW_REPORT_END,
  ROW_dlsym = ROW_REPORT_END,
  ROW_dlvsym,
  ROW_dlopen,
  ROW_END
};

/* names.c */
int shim_row_of(const char* name); /* -1: not in the table. Costs two loads for most other names. */
const char* shim_name_of(int row);

/* elf.c: look-ups that dlsym does not offer. */
struct shim_object {
  uintptr_t base, begin, end; /* load bias; span of the mapped segments */
  const char* path;           /* "" for the main program */
};
/* The loaded object that holds `address`. 0 if none. */
int shim_object_at(const void* address, struct shim_object* out);
/* The first definition of `name` in load order, after the object that holds `after` (NULL: from the start). The shim
 * itself is skipped. */
void* shim_find_after(const void* after, const char* name);
int shim_is_self(const void* address);
struct dl_phdr_info;
void* shim_look_up(const struct dl_phdr_info* info, const char* name); /* the object's definition, or NULL */

/* loaded.c: as dl_iterate_phdr, whatever function of that name the program has. */
typedef int (*shim_object_fn)(struct dl_phdr_info* info, size_t size, void* data);
int shim_iterate_objects(shim_object_fn callback, void* data);

/* real.c: the C library's own functions. */
typedef void* (*shim_dlsym_fn)(void*, const char*);
typedef void* (*shim_dlvsym_fn)(void*, const char*, const char*);
typedef void* (*shim_dlopen_fn)(const char*, int);
shim_dlsym_fn shim_real_dlsym(void); /* NULL while libdl is not loaded yet (glibc before 2.34) */
shim_dlvsym_fn shim_real_dlvsym(void);
shim_dlopen_fn shim_real_dlopen(void);
void shim_close(void* handle); /* NULL is accepted */
void shim_clear_error(void);   /* programs ask dlerror after a dlsym that succeeded */
int shim_need_dl(void);        /* dlopen and dlsym can be called; loads libdl where that is needed */

/* engine.c */
enum shim_state { SHIM_UNTRIED, SHIM_READY, SHIM_UNHOOKED, SHIM_STOPPED };
/* Loads the engine on the first call. NULL: the program goes on without it, or the engine is just starting on this
 * thread. */
const struct sluice_engine_api* shim_engine(void);
int shim_engine_ready(void); /* never loads */
int shim_unhooked(void);     /* final */
/* For a row of CUDA or NVML: the program's replacement of `real` (NULL: not known). Never NULL where real is not. */
void* shim_substitute(int row, void* real);
/* The library's own definition for code at `caller`: from its dependencies, else from any loaded object. NULL: none. */
void* shim_find_real(int row, const void* caller);

/* libs.c: rows of other libraries, of which a process may hold several copies. */
enum { SHIM_COPIES = 4, SHIM_BOUND_BASE = 1 << 16 };
void* shim_library_target(int row, const void* caller); /* an exported trampoline was called */
void* shim_bound_target(int bound);                     /* one of shim_bound's was called; from SHIM_BOUND_BASE */
void* shim_library_answer(int row, void* real, const void* caller); /* dlsym's answer in place of `real` */
void* shim_library_real(void); /* the real function of the entry that this thread was just sent to */
extern char shim_bound[];      /* trampolines of 16 bytes, SHIM_COPIES a row */

const char* shim_variable(const char* name); /* of the environment, or NULL */

/* notice.c */
void shim_log_error(const char* text); /* one line on stderr */
void shim_log_warning(const char* text);
void shim_notify_agent(const char* text);

extern struct sluice_shim_state sluice_shim_link;

/* trampolines.S */
extern void* shim_slots[];

#endif /* SLUICE_HOOKLIB_SHIM_SHIM_H_ */
