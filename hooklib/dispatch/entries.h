// What the application reaches instead of the driver: one function per row of hooks.def, same name and signature as the
// driver's. Entries are reached by tail jumps from the shim and by pointers handed out by dlsym and cuGetProcAddress,
// so
// __builtin_return_address(0) in an entry is the application's. An entry that nobody defines forwards to the driver.
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
