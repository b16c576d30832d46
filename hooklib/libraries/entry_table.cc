// What the shim is told: the entry of each SLUICE_LIB row of hooks.def. A row without an entry does not link.
#include <cstring>

#include "hooklib/libraries/entries.h"
#include "hooklib/libraries/entry.h"

namespace sluice {

namespace {

// Rows of other kinds are in tables of their own (SLUICE_BLAS, SLUICE_CUDNN).
#define SLUICE_BLAS(symbol, family, integer, scalar, element)
#define SLUICE_CUDNN(symbol)
#define SLUICE_LIB(symbol, soname_prefix) {#symbol, reinterpret_cast<void*>(&libraries::entry::symbol)},
const libraries::EntryRow kRows[] = {
#include "hooklib/hooks.def"
};

}  // namespace

void* LibraryEntry(const char* symbol) {
  for (const std::span<const libraries::EntryRow> rows :
       {std::span<const libraries::EntryRow>(kRows), libraries::BlasEntries(), libraries::CudnnEntries()}) {
    for (const libraries::EntryRow& row : rows) {
      if (std::strcmp(row.symbol, symbol) == 0) return row.entry;
    }
  }
  return nullptr;
}

}  // namespace sluice
