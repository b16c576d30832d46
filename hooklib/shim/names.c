/* The table of names, without relocations: an offset into one blob for each row, and a hash table that the first
 * look-up fills. */
#include "hooklib/shim/shim.h"

struct blob {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) char elf_name[sizeof(#elf_name)];
#include "hooklib/hooks.def"
#define SLUICE_NVML(name) char name[sizeof(#name)];
#include "hooklib/hooks.def"
#define SLUICE_LIB(symbol, soname_prefix) char symbol[sizeof(#symbol)];
#include "hooklib/hooks.def"
#define SLUICE_REPORT(symbol, soname) char symbol[sizeof(#symbol)];
#include "hooklib/hooks.def"
  char dlsym[6], dlvsym[7], dlopen[7];
};
static const struct blob kNames = {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) #elf_name,
#include "hooklib/hooks.def"
#define SLUICE_NVML(name) #name,
#include "hooklib/hooks.def"
#define SLUICE_LIB(symbol, soname_prefix) #symbol,
#include "hooklib/hooks.def"
#define SLUICE_REPORT(symbol, soname) #symbol,
#include "hooklib/hooks.def"
    "dlsym", "dlvsym", "dlopen"};
static const uint16_t kOffsets[ROW_END] = {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) offsetof(struct blob, elf_name),
#include "hooklib/hooks.def"
#define SLUICE_NVML(name) offsetof(struct blob, name),
#include "hooklib/hooks.def"
#define SLUICE_LIB(symbol, soname_prefix) offsetof(struct blob, symbol),
#include "hooklib/hooks.def"
#define SLUICE_REPORT(symbol, soname) offsetof(struct blob, symbol),
#include "hooklib/hooks.def"
    offsetof(struct blob, dlsym), offsetof(struct blob, dlvsym), offsetof(struct blob, dlopen)};

#define BUCKETS 2048u
_Static_assert(ROW_END * 3 < BUCKETS * 2, "the hash table is too full");
_Static_assert(sizeof(struct blob) < 65536, "offsets are 16 bits");
static uint16_t buckets[BUCKETS]; /* row + 1 */
static int filled;

static uint32_t hash(const char* s) {
  uint32_t h = 5381;
  for (; *s; ++s) h = h * 33 + (unsigned char)*s;
  return h ^ (h >> 15);
}

static int equal(const char* a, const char* b) {
  while (*a && *a == *b) ++a, ++b;
  return *a == *b;
}

/* Two threads may fill it at once: they write the same values. */
static void fill(void) {
  uint16_t local[BUCKETS];
  for (unsigned i = 0; i < BUCKETS; ++i) local[i] = 0;
  for (unsigned row = 0; row < ROW_END; ++row) {
    unsigned i = hash(shim_name_of((int)row)) % BUCKETS;
    while (local[i]) i = (i + 1) % BUCKETS;
    local[i] = (uint16_t)(row + 1);
  }
  for (unsigned i = 0; i < BUCKETS; ++i) __atomic_store_n(&buckets[i], local[i], __ATOMIC_RELAXED);
  __atomic_store_n(&filled, 1, __ATOMIC_RELEASE);
}

const char* shim_name_of(int row) { return (const char*)&kNames + kOffsets[row]; }

int shim_row_of(const char* name) {
  const char a = name[0], b = a ? name[1] : 0;
  /* cu..., nvml..., dl..., _Z...: no other name is in the table. */
  if (!((a == 'c' && b == 'u') || (a == 'n' && b == 'v') || (a == 'd' && b == 'l') || (a == '_' && b == 'Z')))
    return -1;
  if (!__atomic_load_n(&filled, __ATOMIC_ACQUIRE)) fill();
  for (unsigned i = hash(name) % BUCKETS;; i = (i + 1) % BUCKETS) {
    const unsigned row = __atomic_load_n(&buckets[i], __ATOMIC_RELAXED);
    if (row == 0) return -1;
    if (equal(shim_name_of((int)row - 1), name)) return (int)row - 1;
  }
}
