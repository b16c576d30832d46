// The driver's own functions. Filled before any entry can be reached; a function that this driver lacks is null.
#ifndef SLUICE_HOOKLIB_DISPATCH_REAL_H_
#define SLUICE_HOOKLIB_DISPATCH_REAL_H_

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// NOLINTBEGIN(bugprone-macro-parentheses): names being declared.
struct Real {
#define SLUICE_HOOK(elf_name, base, version, flavour, category) decltype(&::elf_name) elf_name = nullptr;
#define SLUICE_USE(elf_name) decltype(&::elf_name) elf_name = nullptr;
#include "hooklib/hooks.def"
};
// NOLINTEND(bugprone-macro-parentheses)

extern Real g_real;

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DISPATCH_REAL_H_
