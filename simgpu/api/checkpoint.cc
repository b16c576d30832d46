// Checkpoints of the calling process: its states alone. Calls of a locked process do not wait, and nothing is copied.
#include <unistd.h>

#include "../core/misuse.h"
#include "call.h"

using simgpu::Sim;

namespace {

CUprocessState g_state = CU_PROCESS_STATE_RUNNING;  // guarded by the simulator's lock, which each call holds

// Other processes are not simulated.
CUresult Change(int pid, CUprocessState from, CUprocessState to) {
  if (pid != getpid()) return CUDA_ERROR_INVALID_VALUE;
  if (g_state != from) return CUDA_ERROR_ILLEGAL_STATE;
  g_state = to;
  return CUDA_SUCCESS;
}

bool HoldsManaged() {
  for (const auto& [base, allocation] : Sim().memory().all()) {
    if (allocation->kind == simgpu::MemoryKind::kManaged) return true;
  }
  return false;
}

}  // namespace

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  BEGIN(200);
  NEED_ARG(state != nullptr);
  NEED(pid == getpid(), CUDA_ERROR_INVALID_VALUE);
  *state = g_state;
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs*) {
  BEGIN(200);
  return Change(pid, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs*) {
  BEGIN(200);
  if (pid == getpid() && g_state == CU_PROCESS_STATE_LOCKED && HoldsManaged()) {
    // cuda-checkpoint's own words: unified memory is not supported, and the process may be left in a bad state.
    simgpu::Misuse("a process with managed memory is checkpointed");
    g_state = CU_PROCESS_STATE_FAILED;
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return Change(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs*) {
  BEGIN(200);
  return Change(pid, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  BEGIN(200);
  return Change(pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}
