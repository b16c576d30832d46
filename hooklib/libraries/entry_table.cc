// What the shim is told: the entry of each SLUICE_LIB row of hooks.def. A row without an entry does not link.
#include <cstring>

#include "hooklib/libraries/entries.h"
#include "hooklib/libraries/entry.h"

namespace sluice {

namespace {

// Rows of other kinds are in tables of their own (SLUICE_BLAS, SLUICE_CUDNN).
#define SLUICE_BLAS(symbol, family, integer, scalar, element)
#define SLUICE_CUDNN(symbol)
#define SLUICE_LIB(symbol, soname_prefix) {#symbol, reinterpret_cast<void*>(&dnn::entry::symbol)},
const dnn::EntryRow kRows[] = {
#include "hooklib/hooks.def"
};

}  // namespace

void* LibraryEntry(const char* symbol) {
  for (const std::span<const dnn::EntryRow> rows :
       {std::span<const dnn::EntryRow>(kRows), dnn::BlasEntries(), dnn::CudnnEntries()}) {
    for (const dnn::EntryRow& row : rows) {
      if (std::strcmp(row.symbol, symbol) == 0) return row.entry;
    }
  }
  return nullptr;
}

}  // namespace sluice
