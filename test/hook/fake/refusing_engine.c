/* An engine of another build: finds the shim's link and refuses it. */
#include <string.h>

#include "hooklib/shim/engine_abi.h"

extern struct sluice_shim_link sluice_shim_link_v2;
__attribute__((constructor)) static void refuse(void) {
  strcpy(sluice_shim_link_v2.reason, "shim and engine are of different builds");
  sluice_shim_link_v2.status = SLUICE_ENGINE_REFUSED;
}
