// Memory that only the start of a daemon needs, or its rare work.
#ifndef SLUICE_COMMON_STARTUP_PAGES_H_
#define SLUICE_COMMON_STARTUP_PAGES_H_

namespace sluice {

// Unmaps the code of this process. Relocation and the registrations of gRPC and OpenSSL touch 9 MiB of code; each fault
// maps 64 KiB. These pages would count as this process's for ever. Code that runs again is mapped from the page cache.
// Any thread.
void DropStartupPages();

}  // namespace sluice

#endif  // SLUICE_COMMON_STARTUP_PAGES_H_
