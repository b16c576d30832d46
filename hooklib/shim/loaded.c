/* Visits the loaded objects by the C library's own dl_iterate_phdr.
 *
 * By its symbol the name may be the program's function: Seastar, ClickHouse, fakechroot and ThreadSanitizer define one.
 * Such a function looks the real one up by dlsym, which is the shim's and would come back here without end, or it is
 * not set up yet. The loader's list of objects leads to the C library without a call of anything that a program
 * defines. */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>

#include "hooklib/shim/shim.h"

typedef int (*iterate_fn)(shim_object_fn callback, void* data);

/* Weak: under a C library without them the shim is inert and the process starts all the same. */
extern int dl_iterate_phdr(shim_object_fn callback, void* data) __attribute__((weak));
extern unsigned long getauxval(unsigned long type) __attribute__((weak));

static int starts_with(const char* text, const char* prefix) {
  while (*prefix && *text == *prefix) ++text, ++prefix;
  return !*prefix;
}

/* glibc under its SONAME, and musl, whose loader is its C library. */
static int is_c_library(const char* path) {
  const char* base = path;
  for (const char* c = path; *c; ++c) {
    if (*c == '/') base = c + 1;
  }
  return starts_with(base, "libc.so") || starts_with(base, "libc.musl") || starts_with(base, "ld-musl");
}

/* The loader's list, which DT_DEBUG of the main program names. NULL where the program has none. */
static const struct link_map* first_object(void) {
  const ElfW(Phdr)* const segments = getauxval ? (const ElfW(Phdr)*)getauxval(AT_PHDR) : NULL;
  const unsigned long count = segments ? getauxval(AT_PHNUM) : 0;
  const ElfW(Dyn)* dynamic = NULL;
  uintptr_t base = 0;
  for (unsigned long i = 0; i < count; ++i) {
    if (segments[i].p_type == PT_PHDR) base = (uintptr_t)segments - segments[i].p_vaddr;
  }
  for (unsigned long i = 0; i < count; ++i) {
    if (segments[i].p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn)*)(base + segments[i].p_vaddr);
  }
  for (; dynamic && dynamic->d_tag != DT_NULL; ++dynamic) {
    if (dynamic->d_tag != DT_DEBUG) continue;
    const struct r_debug* const debug = (const struct r_debug*)dynamic->d_un.d_ptr;
    return debug ? debug->r_map : NULL;
  }
  return NULL;
}

/* The C library is loaded at start and never removed, so the list up to it does not change. */
static iterate_fn find_iterate(void) {
  for (const struct link_map* object = first_object(); object; object = object->l_next) {
    /* Its first segment begins with the file's header. The main program may have no base. */
    if (!object->l_addr || !object->l_name || !is_c_library(object->l_name)) continue;
    const ElfW(Ehdr)* const header = (const ElfW(Ehdr)*)object->l_addr;
    if (*(const uint32_t*)header->e_ident != *(const uint32_t*)(const void*)ELFMAG) continue;
    const struct dl_phdr_info info = {.dlpi_addr = object->l_addr,
                                      .dlpi_name = object->l_name,
                                      .dlpi_phdr = (const ElfW(Phdr)*)(object->l_addr + header->e_phoff),
                                      .dlpi_phnum = header->e_phnum};
    const iterate_fn found = (iterate_fn)shim_look_up(&info, "dl_iterate_phdr");
    if (found) return found;
  }
  return &dl_iterate_phdr;
}

int shim_iterate_objects(shim_object_fn callback, void* data) {
  static iterate_fn cached;
  iterate_fn iterate = __atomic_load_n(&cached, __ATOMIC_RELAXED);
  if (!iterate) {
    iterate = find_iterate();
    __atomic_store_n(&cached, iterate, __ATOMIC_RELAXED);
  }
  return iterate ? iterate(callback, data) : 0;
}
