// The entries of hooks.def's SLUICE_CUDNN rows, made from their descriptions.
#include "hooklib/libraries/cudnn_call.h"
#include "hooklib/libraries/entry.h"

namespace sluice::libraries {

namespace {

#define SLUICE_CUDNN(symbol) \
  {#symbol, reinterpret_cast<void*>(&Entry<#symbol, decltype(::symbol), &describe::symbol>::Call)},
const EntryRow kRows[] = {
#include "hooklib/hooks.def"
};

}  // namespace

std::span<const EntryRow> CudnnEntries() { return kRows; }

}  // namespace sluice::libraries
