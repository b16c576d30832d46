/* A look-up of our own in the loaded objects. Needed for the C library's dlsym (the shim exports that name itself), for
 * RTLD_NEXT (whose meaning depends on the caller), and on musl. */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>

#include "hooklib/shim/shim.h"

/* Weak: a C library without it makes the shim inert instead of stopping the process. */
extern int dl_iterate_phdr(int (*callback)(struct dl_phdr_info*, size_t, void*), void* data) __attribute__((weak));

static int equal(const char* a, const char* b) {
  while (*a && *a == *b) ++a, ++b;
  return *a == *b;
}

static void describe(const struct dl_phdr_info* info, struct shim_object* out) {
  out->base = info->dlpi_addr;
  out->path = info->dlpi_name ? info->dlpi_name : "";
  out->begin = UINTPTR_MAX;
  out->end = 0;
  out->dynamic = NULL;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_DYNAMIC) out->dynamic = (const void*)at;
    if (segment->p_type != PT_LOAD) continue;
    if (at < out->begin) out->begin = at;
    if (at + segment->p_memsz > out->end) out->end = at + segment->p_memsz;
  }
}

static int holds(const struct shim_object* object, const void* address) {
  return (uintptr_t)address >= object->begin && (uintptr_t)address < object->end;
}

struct tables {
  const ElfW(Sym) * symbols;
  const char* strings;
  const uint32_t *hash, *gnu_hash;
  const uint16_t* versions;
};

static int tables_of(const struct shim_object* object, struct tables* t) {
  t->symbols = NULL, t->strings = NULL, t->hash = NULL, t->gnu_hash = NULL, t->versions = NULL;
  if (!object->dynamic) return 0;
  for (const ElfW(Dyn)* d = object->dynamic; d->d_tag != DT_NULL; ++d) {
    /* glibc has relocated these in place; musl, and the vdso everywhere, have not. */
    uintptr_t at = d->d_un.d_ptr;
    if (at < object->base) at += object->base;
    switch (d->d_tag) {
      case DT_SYMTAB:
        t->symbols = (const void*)at;
        break;
      case DT_STRTAB:
        t->strings = (const void*)at;
        break;
      case DT_HASH:
        t->hash = (const void*)at;
        break;
      case DT_GNU_HASH:
        t->gnu_hash = (const void*)at;
        break;
      case DT_VERSYM:
        t->versions = (const void*)at;
        break;
      default:
        break;
    }
  }
  return t->symbols && t->strings && (t->hash || t->gnu_hash);
}

/* A definition that an unversioned reference made today would get: not a hidden (old) version. */
static void* value_of(const struct shim_object* object, const struct tables* t, uint32_t i, const char* name) {
  const ElfW(Sym)* s = &t->symbols[i];
  const unsigned type = s->st_info & 15u, bind = s->st_info >> 4;
  if (s->st_shndx == SHN_UNDEF || (bind != STB_GLOBAL && bind != STB_WEAK)) return NULL;
  if (type != STT_FUNC && type != STT_NOTYPE) return NULL;
  if (t->versions && (t->versions[i] & 0x8000u)) return NULL;
  return equal(t->strings + s->st_name, name) ? (void*)(object->base + s->st_value) : NULL;
}

static void* look_up(const struct shim_object* object, const char* name) {
  struct tables t;
  if (!tables_of(object, &t)) return NULL;
  void* found = NULL;
  if (t.gnu_hash) {
    uint32_t h = 5381;
    for (const char* c = name; *c; ++c) h = h * 33 + (unsigned char)*c;
    const uint32_t buckets = t.gnu_hash[0], offset = t.gnu_hash[1], words = t.gnu_hash[2];
    const uint32_t* bucket = t.gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t* chain = bucket + buckets;
    if (buckets == 0) return NULL;
    uint32_t i = bucket[h % buckets];
    for (; i >= offset && i != 0 && !found; ++i) {
      const uint32_t other = chain[i - offset];
      if ((other | 1u) == (h | 1u)) found = value_of(object, &t, i, name);
      if (other & 1u) break;
    }
    return found;
  }
  uint32_t h = 0;
  for (const char* c = name; *c; ++c) {
    h = (h << 4) + (unsigned char)*c;
    const uint32_t high = h & 0xf0000000u;
    if (high) h ^= high >> 24;
    h &= ~high;
  }
  const uint32_t buckets = t.hash[0];
  if (buckets == 0) return NULL;
  for (uint32_t i = t.hash[2 + h % buckets]; i != 0 && !found; i = t.hash[2 + buckets + i]) {
    found = value_of(object, &t, i, name);
  }
  return found;
}

int shim_is_self(const void* address) {
  extern const char __ehdr_start[] __attribute__((visibility("hidden")));
  extern const char _end[] __attribute__((visibility("hidden")));
  return (const char*)address >= __ehdr_start && (const char*)address < _end;
}

struct search {
  const void* address;
  const char* name;
  int passed; /* the object that holds `address` has been passed */
  void* found;
  struct shim_object* object;
};

static int match_object(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct search* s = data;
  struct shim_object object;
  describe(info, &object);
  if (!holds(&object, s->address)) return 0;
  *s->object = object;
  return 1;
}

int shim_object_at(const void* address, struct shim_object* out) {
  struct search s = {address, NULL, 0, NULL, out};
  return dl_iterate_phdr ? dl_iterate_phdr(&match_object, &s) : 0;
}

static int match_name(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct search* s = data;
  struct shim_object object;
  describe(info, &object);
  if (!s->passed) {
    s->passed = holds(&object, s->address);
    return 0;
  }
  if (holds(&object, (const void*)&match_name)) return 0;
  s->found = look_up(&object, s->name);
  return s->found != NULL;
}

void* shim_find_after(const void* after, const char* name) {
  struct search s = {after, name, after == NULL, NULL, NULL};
  if (dl_iterate_phdr) dl_iterate_phdr(&match_name, &s);
  return s.found;
}
