// The container's memory as the agent knows it, for a process that only looks: it uses NVML and has made no CUDA
// context. Synchronous: no thread, no page, no budget. Uses only libc.
#ifndef SLUICE_HOOKLIB_CLIENT_CONTAINER_VIEW_H_
#define SLUICE_HOOKLIB_CLIENT_CONTAINER_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "common/mutex.h"
#include "descriptor.h"
#include "sluice/wire.h"

namespace sluice::client {

// Thread-safe. Each call takes at most 0.6 s; where no agent answers, further calls fail at once for a second.
class ContainerView {
 public:
  // The path is copied. Forking is allowed: a child connects anew.
  ContainerView(const char* socket_path, const char* version);
  ContainerView(const ContainerView&) = delete;
  ContainerView& operator=(const ContainerView&) = delete;

  // False: no agent answers. total_bytes 0: the GPU is not the container's. `*knows_use` is false where the agent is
  // older than this call: only total_bytes is set then.
  bool Memory(const char* uuid, sluice_memory* memory, bool* knows_use);
  // The container's attached processes, at most `max`. -1: no answer.
  int Processes(const char* uuid, sluice_process* list, int max);
  // Gives the connection up. A later call connects again.
  void Close();

 private:
  // Not checked: the lock is held from one function to the other.
  static void BeforeFork() SLUICE_NO_THREAD_SAFETY_ANALYSIS;
  static void AfterForkInParent() SLUICE_NO_THREAD_SAFETY_ANALYSIS;
  static void AfterForkInChild() SLUICE_NO_THREAD_SAFETY_ANALYSIS;

  bool Connected() SLUICE_REQUIRES(mutex_);
  bool Connect() SLUICE_REQUIRES(mutex_);
  void Disconnect() SLUICE_REQUIRES(mutex_);
  bool Send(uint16_t type, const void* body, size_t bytes) SLUICE_REQUIRES(mutex_);
  bool Receive(uint16_t type, uint64_t until_ns, sluice_frame* frame) SLUICE_REQUIRES(mutex_);
  bool ReceiveBudgets(uint32_t count, uint64_t until_ns) SLUICE_REQUIRES(mutex_);

  char path_[256];
  char version_[SLUICE_VERSION_CHARS];
  Mutex mutex_;  // held during a call
  Descriptor socket_ SLUICE_GUARDED_BY(mutex_);
  uint64_t seq_ SLUICE_GUARDED_BY(mutex_) = 0, next_id_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t failed_ns_ SLUICE_GUARDED_BY(mutex_) = 0;  // when no agent answered; 0: one did
  // Of an agent that is older than this call.
  struct {
    char uuid[SLUICE_UUID_CHARS];
    uint64_t bytes;
  } totals_[SLUICE_MAX_GPUS] SLUICE_GUARDED_BY(mutex_) = {};
  int totals_count_ SLUICE_GUARDED_BY(mutex_) = 0;
  uint64_t totals_ns_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::client

#endif  // SLUICE_HOOKLIB_CLIENT_CONTAINER_VIEW_H_
