/* A symbol look-up in the loaded objects. The shim needs its own for three reasons: it exports dlsym itself and so
 * cannot ask for the C library's one by name, RTLD_NEXT depends on the caller, and musl has no other way.
 *
 * The loader has mapped an object's segments, so these are trusted. The tables inside them are not: every read is held
 * to the segment that the table is in (test/hook/fuzz_elf.cc). */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>

#include "hooklib/shim/shim.h"

static void describe(const struct dl_phdr_info* info, struct shim_object* out) {
  out->base = info->dlpi_addr;
  out->path = info->dlpi_name ? info->dlpi_name : "";
  out->begin = UINTPTR_MAX;
  out->end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &info->dlpi_phdr[i];
    if (segment->p_type != PT_LOAD) continue;
    const uintptr_t at = info->dlpi_addr + segment->p_vaddr;
    if (at < out->begin) out->begin = at;
    if (at + segment->p_memsz > out->end) out->end = at + segment->p_memsz;
  }
}

static int holds(const struct shim_object* object, const void* address) {
  return (uintptr_t)address >= object->begin && (uintptr_t)address < object->end;
}

/* A table in memory and its entries up to the end of its segment; no entries where the address is in no segment. */
struct table {
  const void* at;
  size_t count;
};

static struct table table_at(const struct dl_phdr_info* info, uintptr_t at, size_t entry_bytes, size_t alignment) {
  struct table table = {NULL, 0};
  if (at % alignment) return table;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &info->dlpi_phdr[i];
    const uintptr_t offset = at - (info->dlpi_addr + segment->p_vaddr);
    if (segment->p_type != PT_LOAD || offset >= segment->p_memsz) continue;
    table.at = (const void*)at;  // NOLINT(performance-no-int-to-ptr): the loader gives addresses
    table.count = (segment->p_memsz - offset) / entry_bytes;
    break;
  }
  return table;
}

#define TABLE_AT(info, at, type) table_at(info, at, sizeof(type), _Alignof(type))

struct tables {
  struct table symbols, strings, hash, gnu_hash, versions;
};

/* The dynamic section of an object, or an empty table. */
static struct table dynamic_of(const struct dl_phdr_info* info) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &info->dlpi_phdr[i];
    if (segment->p_type == PT_DYNAMIC) return TABLE_AT(info, info->dlpi_addr + segment->p_vaddr, ElfW(Dyn));
  }
  return (struct table){NULL, 0};
}

static int tables_of(const struct dl_phdr_info* info, struct tables* out) {
  const struct table none = {NULL, 0}, dynamic = dynamic_of(info);
  const ElfW(Dyn)* const entries = dynamic.at;
  out->symbols = out->strings = out->hash = out->gnu_hash = out->versions = none;
  for (size_t i = 0; i < dynamic.count && entries[i].d_tag != DT_NULL; ++i) {
    /* glibc has relocated these addresses in place. musl has not, and those of the vdso never are. */
    uintptr_t at = entries[i].d_un.d_ptr;
    if (at < info->dlpi_addr) at += info->dlpi_addr;
    switch (entries[i].d_tag) {
      case DT_SYMTAB:
        out->symbols = TABLE_AT(info, at, ElfW(Sym));
        break;
      case DT_STRTAB:
        out->strings = TABLE_AT(info, at, char);
        break;
      case DT_HASH:
        out->hash = TABLE_AT(info, at, uint32_t);
        break;
      case DT_GNU_HASH:
        out->gnu_hash = TABLE_AT(info, at, uint32_t);
        break;
      case DT_VERSYM:
        out->versions = TABLE_AT(info, at, uint16_t);
        break;
      default:
        break;
    }
  }
  return out->symbols.count && out->strings.count && (out->hash.count || out->gnu_hash.count);
}

/* Whether the string table holds `name` at `offset`. */
static int names(const struct table* strings, size_t offset, const char* name) {
  const char* const text = strings->at;
  for (; offset < strings->count && text[offset] == *name; ++offset, ++name) {
    if (!*name) return 1;
  }
  return 0;
}

/* The address of symbol `i` where it defines `name` for an unversioned reference made today: a hidden (old) version
 * does not. Else NULL. */
static void* value_of(uintptr_t base, const struct tables* tables, size_t i, const char* name) {
  const ElfW(Sym)* const symbols = tables->symbols.at;
  const uint16_t* const versions = tables->versions.at;
  if (i >= tables->symbols.count) return NULL;
  const unsigned type = symbols[i].st_info & 15u, bind = symbols[i].st_info >> 4;
  if (symbols[i].st_shndx == SHN_UNDEF || (bind != STB_GLOBAL && bind != STB_WEAK)) return NULL;
  if (type != STT_FUNC && type != STT_NOTYPE) return NULL;
  if (versions && (i >= tables->versions.count || (versions[i] & 0x8000u))) return NULL;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses
  return names(&tables->strings, symbols[i].st_name, name) ? (void*)(base + symbols[i].st_value) : NULL;
}

/* DT_GNU_HASH: buckets, first hashed symbol, words of the Bloom filter, its shift; the filter; the first symbol of each
 * bucket; a hash for each symbol, whose low bit ends the bucket. */
static void* look_up_gnu(uintptr_t base, const struct tables* tables, const char* name) {
  const uint32_t* const words = tables->gnu_hash.at;
  const uint64_t count = tables->gnu_hash.count;
  if (count < 4 || words[0] == 0) return NULL;
  uint32_t hash = 5381;
  for (const char* c = name; *c; ++c) hash = hash * 33 + (unsigned char)*c;
  const uint64_t buckets = 4 + (uint64_t)words[2] * (sizeof(ElfW(Addr)) / 4), chains = buckets + words[0];
  const uint64_t bucket = buckets + hash % words[0];
  if (bucket >= count) return NULL;
  uint64_t i = words[bucket];
  if (i == 0 || i < words[1]) return NULL;
  for (uint64_t at = chains + (i - words[1]); at < count; ++at, ++i) {
    void* const found = (words[at] | 1u) == (hash | 1u) ? value_of(base, tables, i, name) : NULL;
    if (found) return found;
    if (words[at] & 1u) break;
  }
  return NULL;
}

/* DT_HASH: buckets, symbols; the first symbol of each bucket; for each symbol the next one of its bucket, 0 at the end.
 */
static void* look_up_sysv(uintptr_t base, const struct tables* tables, const char* name) {
  const uint32_t* const words = tables->hash.at;
  const uint64_t count = tables->hash.count;
  if (count < 2 || words[0] == 0 || 2 + (uint64_t)words[0] + words[1] > count) return NULL;
  uint32_t hash = 0;
  for (const char* c = name; *c; ++c) {
    hash = (hash << 4) + (unsigned char)*c;
    const uint32_t high = hash & 0xf0000000u;
    if (high) hash ^= high >> 24;
    hash &= ~high;
  }
  const uint32_t* const next = words + 2 + words[0];
  uint32_t i = words[2 + hash % words[0]];
  for (uint32_t steps = 0; i != 0 && i < words[1] && steps < words[1]; i = next[i], ++steps) {
    void* const found = value_of(base, tables, i, name);
    if (found) return found;
  }
  return NULL;
}

void* shim_look_up(const struct dl_phdr_info* info, const char* name) {
  struct tables tables;
  if (!tables_of(info, &tables)) return NULL;
  return tables.gnu_hash.count ? look_up_gnu(info->dlpi_addr, &tables, name)
                               : look_up_sysv(info->dlpi_addr, &tables, name);
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
  struct search* search = data;
  struct shim_object object;
  describe(info, &object);
  if (!holds(&object, search->address)) return 0;
  *search->object = object;
  return 1;
}

int shim_object_at(const void* address, struct shim_object* out) {
  struct search search = {address, NULL, 0, NULL, out};
  return shim_iterate_objects(&match_object, &search);
}

static int match_name(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct search* search = data;
  struct shim_object object;
  describe(info, &object);
  if (!search->passed) {
    search->passed = holds(&object, search->address);
    return 0;
  }
  if (holds(&object, (const void*)&match_name)) return 0; /* the shim itself */
  search->found = shim_look_up(info, search->name);
  return search->found != NULL;
}

void* shim_find_after(const void* after, const char* name) {
  struct search search = {after, name, after == NULL, NULL, NULL};
  shim_iterate_objects(&match_name, &search);
  return search.found;
}
