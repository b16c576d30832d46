// The hook table at run time: for each row the entry and the driver's function, and the choice by (name, version,
// flavour).
#ifndef SLUICE_HOOKLIB_DISPATCH_TABLE_H_
#define SLUICE_HOOKLIB_DISPATCH_TABLE_H_

#include <cstddef>
#include <string_view>

namespace sluice {

enum class Flavour { ANY, LEGACY, PTSZ, PTDS };  // as hooks.def writes them

struct HookRow {
  std::string_view name;  // exact ELF name
  std::string_view base;  // cuGetProcAddress' name
  int version = 0;        // first CUDA version with this signature
  Flavour flavour = Flavour::ANY;
  int index = -1;  // row among SLUICE_HOOK, or -1: passed through
};

std::size_t HookCount();
const char* HookName(std::size_t index);

// Entry of row `index`: hooklib/engine's definition, or the one that forwards. Never null.
void* Entry(std::size_t index);

// The driver's function of row `index`; null while unbound or where the driver lacks it.
void* RealOf(std::size_t index);

// The entry whose driver function is exactly `real`, or null.
void* EntryForPointer(const void* real);

// The entry for a request of cuGetProcAddress. Null where the answer must stay the driver's own: an unknown name, a row
// that is passed through, or a version that this driver does not have.
void* EntryForRequest(std::string_view base, int version, bool per_thread);

// Whether a row of this base is intercepted.
bool IsIntercepted(std::string_view base);
// Whether a row or a family of hooks.def names it, intercepted or not.
bool IsExamined(std::string_view base);

// Fills g_real by looking every name up with `lookup(context, name)`. Thread-safe: the first caller fills it.
void BindReal(void* (*lookup)(void* context, const char* name), void* context);
// The same in place of an earlier binding. Only before a cuInit has succeeded: nothing works with the driver then.
void RebindReal(void* (*lookup)(void* context, const char* name), void* context);
bool RealBound();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DISPATCH_TABLE_H_
