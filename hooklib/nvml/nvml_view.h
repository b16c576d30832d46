// NVML's memory and process calls, answered for the fraction. Bound to libnvidia-ml when a program first looks one of
// them up.
#ifndef SLUICE_HOOKLIB_NVML_NVML_VIEW_H_
#define SLUICE_HOOKLIB_NVML_NVML_VIEW_H_

#include <cstddef>

#include "hooklib/dispatch/nvml_api.h"

namespace sluice {

// NOLINTBEGIN(bugprone-macro-parentheses): names being declared.
struct NvmlReal {
#define SLUICE_NVML(name) decltype(&::name) name = nullptr;
#define SLUICE_NVML_USE(name) decltype(&::name) name = nullptr;
#include "hooklib/hooks.def"
};
extern NvmlReal g_nvml;

// Rows by index, in hooks.def's order. NvmlRealOf: null while unbound, or where this NVML lacks the function.
std::size_t NvmlHookCount();
const char* NvmlHookName(std::size_t index);
void* NvmlEntryOf(std::size_t index);
void* NvmlRealOf(std::size_t index);
bool NvmlBound();
// Fills g_nvml by looking every name up with `lookup(context, name)`. Thread-safe: the first caller fills it.
void NvmlBind(void* (*lookup)(void* context, const char* name), void* context);

namespace nvml_entry {
#define SLUICE_NVML(name) decltype(::name) name;
#include "hooklib/hooks.def"
}  // namespace nvml_entry
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_NVML_NVML_VIEW_H_
