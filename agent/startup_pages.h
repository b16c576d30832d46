// Memory that only the start of the agent needs.
#ifndef SLUICE_AGENT_STARTUP_PAGES_H_
#define SLUICE_AGENT_STARTUP_PAGES_H_

namespace sluice::agent {

// Unmaps the code of this process. Relocation and the registrations of gRPC and OpenSSL touch 9 MiB of code; each fault
// maps 64 KiB. These pages would count as this process's for ever. Code that runs again is mapped from the page cache.
// Any thread.
void DropStartupPages();

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_STARTUP_PAGES_H_
