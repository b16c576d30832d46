// Driver functions in use that are newer than the hook table (dispatch/engine_hooks.h, NoteNewerEntry).
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_NEWER_ENTRIES_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_NEWER_ENTRIES_H_

#include <cstdint>

namespace sluice {

uint64_t NewerEntries();  // how many the program has asked for. Thread-safe

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_NEWER_ENTRIES_H_
