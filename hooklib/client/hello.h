// The HELLO frame of a process that connects to the agent.
#ifndef SLUICE_HOOKLIB_CLIENT_HELLO_H_
#define SLUICE_HOOKLIB_CLIENT_HELLO_H_

#include "sluice/wire.h"

namespace sluice::client {

// Fills pid, start time and command line of this process from /proc/self. Fields that cannot be read stay zero.
void FillHello(sluice_hello& hello);

}  // namespace sluice::client

#endif  // SLUICE_HOOKLIB_CLIENT_HELLO_H_
