/* A driver of numbers: every function of hooks.def exists under its exact name and returns 1000 + its row; cuInit
 * returns its argument. A call that passed the marking engine returns 100000 more. cuGetProcAddress behaves like the
 * driver's: by base name, version and flavour, with its status. Built twice: libcuda.so.1 and, with SLUICE_FAKE_OTHER,
 * a second one that returns other numbers. */
#include <stddef.h>
#include <string.h>

#ifdef SLUICE_FAKE_OTHER
enum { FIRST = 50000 };
#else
enum { FIRST = 1000 };
#endif

enum {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) ROW_##elf_name,
#define SLUICE_PASS(elf_name, base, version, flavour, reason) ROW_##elf_name,
#include "hooklib/hooks.def"
};

/* Functions that do not return a number. */
#define cuGetProcAddress fake_unused_1
#define cuGetProcAddress_v2 fake_unused_2
#define cuGetProcAddress_v2_ptsz fake_unused_3
#define cuInit fake_unused_4
#define NUMBER(elf_name, ...) \
  int elf_name(void);         \
  int elf_name(void) { return FIRST + (int)ROW_##elf_name; }
enum { ROW_fake_unused_1, ROW_fake_unused_2, ROW_fake_unused_3, ROW_fake_unused_4 };
#define SLUICE_HOOK(elf_name, base, version, flavour, category) NUMBER(elf_name)
#define SLUICE_PASS(elf_name, base, version, flavour, reason) NUMBER(elf_name)
#include "hooklib/hooks.def"
#undef cuGetProcAddress
#undef cuGetProcAddress_v2
#undef cuGetProcAddress_v2_ptsz
#undef cuInit

/* In no row of the table. */
int cuFakeUnknown(void);
int cuFakeUnknown(void) { return 77; }
int cuInit(unsigned flags);
int cuInit(unsigned flags) { return (int)flags; }

enum { NOT_FOUND = 500, INVALID = 1 };
int cuGetProcAddress(const char*, void**, int, unsigned long long);
int cuGetProcAddress_v2(const char*, void**, int, unsigned long long, int*);
int cuGetProcAddress_v2_ptsz(const char*, void**, int, unsigned long long, int*);

static const struct row {
  const char *name, *base;
  int version;
  const char* flavour;
  void* function;
} rows[] = {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) \
  {#elf_name, #base, version, #flavour, (void*)&(elf_name)},
#define SLUICE_PASS(elf_name, base, version, flavour, reason) {#elf_name, #base, version, #flavour, (void*)&(elf_name)},
#include "hooklib/hooks.def"
    {"cuFakeUnknown", "cuFakeUnknown", 2000, "ANY", (void*)&cuFakeUnknown},
};

/* SLUICE_FAKE_ALIASES: returns other addresses than those of the exported symbols, as a driver may. */
#ifdef SLUICE_FAKE_ALIASES
#define ALIASES 700
__attribute__((aligned(16))) static char code[ALIASES * 16];
#include <sys/mman.h>
static void* alias(void* function) {
  static int used, ready;
  static void* made[ALIASES];
  if (!ready) /* a driver's own trampolines: NOLINTNEXTLINE(clang-analyzer-security.MmapWriteExec) */
    mprotect((void*)((size_t)code & ~4095ul), sizeof code + 4096, PROT_READ | PROT_WRITE | PROT_EXEC), ready = 1;
  for (int i = 0; i < used; ++i) {
    if (made[i] == function) return code + i * 16;
  }
  unsigned char* at = (unsigned char*)code + used * 16;
#ifdef __aarch64__ /* ldr x16, function; br x16; function: */
  const unsigned load = 0x58000050, branch = 0xd61f0200;
  memcpy(at, &load, 4), memcpy(at + 4, &branch, 4), memcpy(at + 8, &function, 8);
#else /* movabs $function, %rax; jmp *%rax */
  at[0] = 0x48, at[1] = 0xb8;
  memcpy(at + 2, &function, 8);
  at[10] = 0xff, at[11] = 0xe0;
#endif
  __builtin___clear_cache((char*)at, (char*)at + 16);
  made[used++] = function;
  return at;
}
#else
#define alias(function) (function)
#endif

static int find(const char* symbol, void** out, int version, int per_thread, int* status) {
  const struct row* best = NULL;
  int known = 0, best_sister = 0;
  if (!symbol || !out) return INVALID;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const int sister = !strncmp(rows[i].flavour, "PT", 2);
    if (strcmp(rows[i].base, symbol) != 0) continue;
    known = 1;
    if (rows[i].version > version || (sister && !per_thread)) continue;
    if (best && ((best_sister && !sister) || (best_sister == sister && rows[i].version < best->version))) continue;
    best = &rows[i];
    best_sister = sister;
  }
  *out = best ? alias(best->function) : NULL;
  if (status) *status = best ? 0 : known ? 2 : 1; /* SUCCESS, VERSION_NOT_SUFFICIENT, SYMBOL_NOT_FOUND */
  return best || status ? 0 : NOT_FOUND;
}

int cuGetProcAddress(const char* s, void** p, int v, unsigned long long f) { return find(s, p, v, (f & 2) != 0, NULL); }
int cuGetProcAddress_v2(const char* s, void** p, int v, unsigned long long f, int* st) {
  return find(s, p, v, (f & 2) != 0, st);
}
int cuGetProcAddress_v2_ptsz(const char* s, void** p, int v, unsigned long long f, int* st) {
  return find(s, p, v, (f & 1) == 0, st);
}
