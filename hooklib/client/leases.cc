// The process's leases of its container's memory-limit (sluice_lease in proto/sluice/wire.h).

#include "client/agent_client.h"
#include "client/internals.h"

namespace sluice::client {

int AgentClient::Lease(const char* uuid) {
  MutexLock lock(mutex_);
  for (int i = 0; i < lease_count_; ++i) {
    if (strncmp(leases_[i].uuid, uuid, sizeof(leases_[i].uuid)) == 0) return i;
  }
  if (lease_count_ == SLUICE_MAX_GPUS) return -1;
  leases_[lease_count_] = {};
  CopyText(leases_[lease_count_].uuid, sizeof(leases_[lease_count_].uuid), uuid);
  return lease_count_++;
}

AgentClient::GpuLease* AgentClient::LeaseNamed(const char* uuid) {
  for (int i = 0; i < lease_count_; ++i) {
    if (strncmp(leases_[i].uuid, uuid, sizeof(leases_[i].uuid)) == 0) return &leases_[i];
  }
  return nullptr;
}

// The agent may take from the same word at any time.
bool AgentClient::Take(sluice_lease* words, uint64_t bytes) {
  int64_t headroom = __atomic_load_n(&words->headroom_bytes, __ATOMIC_RELAXED);
  do {
    if (headroom < 0 || static_cast<uint64_t>(headroom) < bytes) return false;
  } while (!__atomic_compare_exchange_n(&words->headroom_bytes, &headroom, headroom - static_cast<int64_t>(bytes),
                                        false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return true;
}

bool AgentClient::Charge(int gpu, uint64_t bytes, int wait_ms) {
  constexpr int kMaxRequests = 16;  // other threads may use one thread's grant
  if (gpu < 0) return true;
  const Clock::time_point until = DeadlineAfter(wait_ms);
  MutexLock lock(mutex_);
  GpuLease& lease = leases_[gpu];
  for (int requests = 0; lease.leased && !Take(SharedLease(lease), bytes); ++requests) {
    if (wait_ms <= 0 || requests == kMaxRequests || bytes > INT64_MAX) return false;
    const int64_t headroom = __atomic_load_n(&SharedLease(lease)->headroom_bytes, __ATOMIC_RELAXED);
    const uint64_t missing = bytes - static_cast<uint64_t>(headroom);  // wraps to the sum where it is negative
    const uint64_t granted = SharedLease(lease)->granted_bytes;
    const uint64_t id = static_cast<int64_t>(missing) > 0 ? AskLocked(&lease, missing) : 0;
    if (id == 0 && static_cast<int64_t>(missing) > 0) return false;
    if (id != 0 && !AwaitLocked(lease.answered, id, until)) return false;
    if (id != 0 && lease.leased &&
        SharedLease(lease)->granted_bytes == granted) {  // refused; or others have freed meanwhile
      if (Take(SharedLease(lease), bytes)) break;
      return false;
    }
  }
  lease.charged += bytes;
  if (lease.leased) __atomic_store_n(&SharedLease(lease)->charged_bytes, lease.charged, __ATOMIC_RELAXED);
  return true;
}

void AgentClient::Recharge(int gpu, int64_t change) {
  if (gpu < 0 || change == 0) return;
  MutexLock lock(mutex_);
  GpuLease& lease = leases_[gpu];
  lease.charged += static_cast<uint64_t>(change);
  if (!lease.leased) return;
  __atomic_store_n(&SharedLease(lease)->charged_bytes, lease.charged, __ATOMIC_RELAXED);
  __atomic_sub_fetch(&SharedLease(lease)->headroom_bytes, change, __ATOMIC_ACQ_REL);
}

AgentClient::ContainerMemory AgentClient::AskMemory(int gpu, bool even_if_alone, int wait_ms) {
  if (gpu < 0) return {};
  const Clock::time_point until = DeadlineAfter(wait_ms);
  MutexLock lock(mutex_);
  GpuLease& lease = leases_[gpu];
  if (wait_ms > 0 && (lease.processes > 1 || even_if_alone)) {
    if (const uint64_t id = AskLocked(&lease, 0)) AwaitLocked(lease.answered, id, until);
  }
  return lease.container;
}

int AgentClient::AskProcesses(int gpu, sluice_process* list, int max, int wait_ms) {
  if (gpu < 0) return -1;
  const Clock::time_point until = DeadlineAfter(wait_ms);
  MutexLock lock(mutex_);
  GpuLease& lease = leases_[gpu];
  int got = 0;
  for (;;) {
    sluice_processes request{};
    memcpy(request.uuid, lease.uuid, sizeof(request.uuid));
    const uint64_t id = request.id = ++lease.processes_asked;
    request.first = static_cast<uint32_t>(got);
    if (!attached() || agent_minor_ < SLUICE_MINOR_LEASES ||
        !SendLocked(SLUICE_PROCESSES_REQUEST, &request, sizeof(request)) ||
        !AwaitLocked(lease.processes_answered, id, until))
      return -1;
    const sluice_processes& answer = lease.answer;
    if (answer.id != id || answer.first != request.first) return -1;  // another thread's
    for (int i = 0; i < SLUICE_PROCESSES_A_FRAME && got < max && static_cast<uint32_t>(got) < answer.count; ++i)
      list[got++] = answer.list[i];
    if (got == max || static_cast<uint32_t>(got) >= answer.count) return got;
  }
}

uint64_t AgentClient::AskLocked(GpuLease* lease, uint64_t missing_bytes) {
  if (!attached() || agent_minor_ < SLUICE_MINOR_LEASES) return 0;
  sluice_memory request{};
  memcpy(request.uuid, lease->uuid, sizeof(request.uuid));
  request.id = lease->asked + 1;
  request.missing_bytes = missing_bytes;
  if (!SendLocked(SLUICE_MEMORY_REQUEST, &request, sizeof(request))) return 0;
  return ++lease->asked;
}

bool AgentClient::AwaitLocked(const uint64_t& answered, uint64_t id, Clock::time_point until) {
  while (answered < id) {
    if (!attached() || Clock::now() >= until) return false;
    changed_.WaitUntil(mutex_, until);
  }
  return true;
}

void AgentClient::FollowLease(const sluice_budget& budget) {
  MutexLock lock(mutex_);
  GpuLease* const lease = LeaseNamed(budget.uuid);
  if (lease == nullptr) return;
  lease->processes = budget.processes;
  if (budget.leased == 0 || budget.lease_slot >= SLUICE_MAX_GPUS) {  // an older agent: each process by itself
    if (lease->leased) *SharedLease(*lease) = {};
    lease->leased = false;
    return;
  }
  if (!lease->leased || lease->slot != budget.lease_slot) {
    lease->leased = true;
    lease->slot = budget.lease_slot;
    sluice_lease* const words = SharedLease(*lease);
    *words = {};
    words->charged_bytes = lease->charged;
    words->headroom_bytes = -static_cast<int64_t>(lease->charged);  // allocated before there was an agent
  }
  AddGranted(lease, budget.granted_bytes);
}

void AgentClient::AddGranted(GpuLease* lease, uint64_t granted_bytes) {
  sluice_lease* const words = SharedLease(*lease);
  if (!lease->leased || granted_bytes <= words->granted_bytes) return;
  const uint64_t more = granted_bytes - words->granted_bytes;
  __atomic_store_n(&words->granted_bytes, granted_bytes, __ATOMIC_RELAXED);
  __atomic_add_fetch(&words->headroom_bytes, static_cast<int64_t>(more), __ATOMIC_ACQ_REL);
}

void AgentClient::NoteMemory(const sluice_memory& memory) {
  MutexLock lock(mutex_);
  GpuLease* const lease = LeaseNamed(memory.uuid);
  if (lease == nullptr) return;
  AddGranted(lease, memory.granted_bytes);
  lease->processes = memory.processes;
  lease->container.others_bytes = memory.used_bytes > lease->charged ? memory.used_bytes - lease->charged : 0;
  lease->container.utilization = memory.utilization;
  if (memory.id > lease->answered) lease->answered = memory.id;
  changed_.NotifyAll();
}

void AgentClient::NoteProcesses(const sluice_processes& processes) {
  MutexLock lock(mutex_);
  GpuLease* const lease = LeaseNamed(processes.uuid);
  if (lease == nullptr) return;
  lease->answer = processes;
  if (processes.id > lease->processes_answered) lease->processes_answered = processes.id;
  changed_.NotifyAll();
}

void AgentClient::EndLeases() {
  for (GpuLease& lease : leases_) {
    lease.charged = 0;
    lease.leased = false;
    lease.processes = 1;
    lease.container = {};
  }
}

}  // namespace sluice::client
