/* An engine of another build: finds the shim's link and refuses it. */
#include <string.h>

#include "hooklib/shim/engine_abi.h"

extern struct sluice_shim_state sluice_shim_link;
__attribute__((constructor)) static void refuse(void) {
  strcpy(sluice_shim_link.reason, "shim and engine are of different builds");
  sluice_shim_link.status = SLUICE_ENGINE_REFUSED;
}
