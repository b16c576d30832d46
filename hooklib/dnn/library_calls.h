// Entries for functions of cuDNN, cuBLAS and cuBLASLt (SLUICE_LIB rows of hooks.def).
#ifndef SLUICE_HOOKLIB_DNN_LIBRARY_CALLS_H_
#define SLUICE_HOOKLIB_DNN_LIBRARY_CALLS_H_

namespace sluice {

// The engine's entry for `symbol`, with that function's signature, or null: its calls then go straight to the library.
// Asked once for each symbol, when it is first called. hooklib/dnn defines it; without it nothing is intercepted.
void* LibraryEntry(const char* symbol);

// In an entry, before anything else: the function of the very copy of the library that the program called. Valid on
// this thread until the next call into a library.
void* LibraryReal();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_DNN_LIBRARY_CALLS_H_
