// The engine does not link where a row of hooks.def claims an entry for the order of its work, and none is defined: the
// generated entry would forward the call, and nothing would count its work.
#include "hooklib/dispatch/entries.h"

namespace sluice {
namespace {

#define SLUICE_ENTRY_PLANNED(name) reinterpret_cast<const void*>(&entry::name),
#define SLUICE_ENTRY_SERVED(name) SLUICE_ENTRY_PLANNED(name)
#define SLUICE_ENTRY_WAITS(name) SLUICE_ENTRY_PLANNED(name)
#define SLUICE_ENTRY_RECORDS(name) SLUICE_ENTRY_PLANNED(name)
#define SLUICE_ENTRY_ENDS(name) SLUICE_ENTRY_PLANNED(name)
#define SLUICE_ENTRY_COUNTED(name)
#define SLUICE_ENTRY_CAPTURES(name)
[[gnu::used, gnu::retain]] const void* const kEntries[] = {
#define SLUICE_ORDER(elf_name, effect) SLUICE_ENTRY_##effect(elf_name)
#include "hooklib/hooks.def"
};

}  // namespace
}  // namespace sluice
