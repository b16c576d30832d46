#include "common/startup_pages.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace sluice {

void DropStartupPages() {
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void*) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = object->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_W) != 0) continue;  // never written: nothing is lost
          const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)),
                          begin = object->dlpi_addr + part.p_vaddr;
          const uintptr_t from = begin / page * page;
          // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as numbers
          madvise(reinterpret_cast<void*>(from), begin + part.p_filesz - from, MADV_DONTNEED);
        }
        return 0;
      },
      nullptr);
}

}  // namespace sluice
