// Functions of the same copy of a library that a program called: its getters.
#ifndef SLUICE_HOOKLIB_LIBRARIES_COMPANIONS_H_
#define SLUICE_HOOKLIB_LIBRARIES_COMPANIONS_H_

namespace sluice::libraries {

// `symbol` (a string literal: its address is the key) of the library that holds `real`; null if it has none. The loader
// is asked once, and then keeps the library loaded. Any thread, without a lock once the answer is known.
void* CompanionOf(void* real, const char* symbol);

}  // namespace sluice::libraries

#endif  // SLUICE_HOOKLIB_LIBRARIES_COMPANIONS_H_
