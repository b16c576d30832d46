// The part of the cards that all processes see: memory in use, the driver's eviction order, the link, compute, clocks.
// One file (SIMGPU_STATE) mapped by every process, or private memory without it. Plain structs, fixed layout.
#ifndef SIMGPU_CORE_SHARED_STATE_H_
#define SIMGPU_CORE_SHARED_STATE_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "profile.h"

namespace simgpu {

constexpr uint64_t kBlockBytes = 2 << 20;  // what UVM evicts, and the unit of residency here
constexpr int kMaxCards = 16;
constexpr int kMaxSlots = 64;
constexpr int kMaxXids = 64;

// A piece of card memory that holds (part of) one managed block. Residency is this table's word alone: another process'
// driver may take a chunk away, which raises its generation.
struct Chunk {
  uint64_t address;
  int32_t prev, next;
  uint32_t generation;
  uint32_t bytes;
  uint32_t out_bytes;  // what eviction has to move; 0: duplicate or discarded
  int16_t slot;        // owner, -1: free
  int16_t list;        // kUsed or kUnused
};

// One direction and kind of traffic: first come, first served.
struct LinkServer {
  std::atomic<int64_t> busy_until;
  std::atomic<double> rate;
  std::atomic<bool> faults;
  std::atomic<bool> requests;
};
enum Server { kManagedIn, kManagedOut, kCopyIn, kCopyOut, kRemoteIn, kRemoteOut, kServers };

enum ChunkList { kUsed, kUnused, kLists };

struct Card {
  std::atomic<uint64_t> unmanaged_used;
  std::atomic<uint64_t> managed_used;
  std::atomic<int64_t> compute_free;
  std::atomic<int64_t> busy_ns;
  LinkServer link[kServers];
  int32_t head[kLists], tail[kLists];
  int32_t free_chunk;  // a list by `next`; -1: none
  int32_t fresh;       // from here on no entry was ever used
  std::atomic<uint32_t> xid_count;
  uint32_t xid[kMaxXids];
};

struct Slot {
  std::atomic<int32_t> pid;  // as the process sees itself
  uint64_t start_time;       // of the process; with pid and namespace it is told from all others
  uint64_t pid_namespace;
  std::atomic<int64_t> clock;     // it will ask nothing of a card before this time
  std::atomic<uint32_t> running;  // takes part in the common clock
  std::atomic<uint32_t> waiting;  // for others' clocks: asleep, not idle
  std::atomic<uint64_t> unmanaged[kMaxCards];
  std::atomic<uint64_t> managed[kMaxCards];
  std::atomic<uint64_t> evicted[kMaxCards];  // bytes taken from it by a full card
  char name[64];
};

struct Header {
  uint64_t magic;
  uint64_t size;
  uint64_t profile_hash;
  uint32_t cards;
  uint32_t chunks_per_card;
  pthread_mutex_t mutex;
  std::atomic<int64_t> now;       // the furthest any process got
  std::atomic<uint32_t> tickets;  // of processes that wait for one another at the start
  Slot slots[kMaxSlots];
  Card card[kMaxCards];
};

class SharedState {
 public:
  // Maps the state; exits with 2 and a sentence when the file is another profile's or cannot be used.
  explicit SharedState(const Profile& profile);

  Header& header() { return *header_; }
  Card& card(int i) { return header_->card[i]; }
  Chunk& chunk(int card, int32_t i) { return chunks_[static_cast<size_t>(card) * header_->chunks_per_card + i]; }
  bool shared() const { return shared_; }

  // This process' slot; taken at the first call, given back at exit or found dead by others.
  int Attach();
  void Detach();
  int slot() const { return slot_; }
  Slot& self() { return header_->slots[slot_]; }

  // Gives back what dead processes held.
  void Reap();
  // The process of a slot that is taken, as this one sees it, whatever their pid namespaces: its pid; 0: it lives, and
  // cannot be seen from here; -1: it is dead.
  int Owner(int slot);

  // Waits until no other running process can still ask for something before `time` minus the window. One whose threads
  // all sleep, or that makes no call for SIMGPU_PATIENCE_MS of real time, leaves the common clock until its next call.
  void WaitForOthers(int64_t time);
  // Publishes how far this process is; returns the time it must not act before (it may have been left behind).
  int64_t Publish(int64_t time);

  // All functions below need the lock.
  class Lock {
   public:
    explicit Lock(SharedState& s);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    SharedState& state_;
  };
  int32_t TakeChunk(int card, uint64_t address, uint32_t bytes);  // -1: table full
  void ReleaseChunk(int card, int32_t i);
  void MoveToTail(int card, int32_t i, ChunkList list);
  uint64_t Used(int card) const;

 private:
  friend class Lock;
  void Create(const Profile& profile, uint32_t chunks);
  void ReapLocked();
  void Rebuild();
  void Unlink(int card, int32_t i);
  void Append(int card, int32_t i, ChunkList list);

  Header* header_ = nullptr;
  Chunk* chunks_ = nullptr;
  bool shared_ = false;
  int fd_ = -1;  // of the shared state, never closed (see Owner)
  int slot_ = -1;
  int64_t window_ns_ = 0;  // 0: events of all processes in one order, so that runs repeat
  int64_t patience_ms_ = 1000;
};

uint64_t ProfileHash(const Profile& profile);

// The one of this process, made on first use.
SharedState& TheState();

}  // namespace simgpu

#endif  // SIMGPU_CORE_SHARED_STATE_H_
