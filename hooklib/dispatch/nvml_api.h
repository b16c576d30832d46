// nvml.h with every function under its exact ELF name (its macros rename the unversioned ones).
#ifndef SLUICE_HOOKLIB_DISPATCH_NVML_API_H_
#define SLUICE_HOOKLIB_DISPATCH_NVML_API_H_

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#endif  // SLUICE_HOOKLIB_DISPATCH_NVML_API_H_
