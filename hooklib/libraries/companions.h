// Functions of the very copy of a library that a program called: its getters.
#ifndef SLUICE_HOOKLIB_LIBRARIES_COMPANIONS_H_
#define SLUICE_HOOKLIB_LIBRARIES_COMPANIONS_H_

namespace sluice::libraries {

// `symbol` (a string literal: its address is the key) of the library that holds `real`; null if it has none. Looked up
// once; the look-up keeps the library loaded.
void* CompanionOf(void* real, const char* symbol);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_COMPANIONS_H_
