// The functions that the application reaches in place of the driver's: one per row of hooks.def, with the driver's name
// and signature. The shim jumps to entries by tail jumps, and dlsym and cuGetProcAddress hand out their addresses. In
// an entry, the built-in return address is therefore the application's. An entry without a definition forwards to the
// driver.
#ifndef SLUICE_HOOKLIB_DISPATCH_ENTRIES_H_
#define SLUICE_HOOKLIB_DISPATCH_ENTRIES_H_

#include "hooklib/dispatch/cuda_api.h"

// NOLINTBEGIN(bugprone-macro-parentheses): names being declared.
namespace sluice::entry {

#define SLUICE_HOOK(elf_name, base, version, flavour, category) decltype(::elf_name) elf_name;
#include "hooklib/hooks.def"

}  // namespace sluice::entry
// NOLINTEND(bugprone-macro-parentheses)

#endif  // SLUICE_HOOKLIB_DISPATCH_ENTRIES_H_
