// The state of the cards that all processes share: memory in use, the driver's eviction order, the link, compute,
// clocks. One file (SIMGPU_STATE) that every process maps, or private memory. Plain structs with a fixed layout.
#ifndef SIMGPU_CORE_SHARED_STATE_H_
#define SIMGPU_CORE_SHARED_STATE_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "profile.h"

namespace simgpu {

constexpr uint64_t kBlockBytes = 2 << 20;  // the unit of UVM's evictions, and of residency here
constexpr int kMaxCards = 16;
constexpr int kMaxSlots = 64;
constexpr int kMaxXids = 64;

// A piece of card memory that holds (part of) one managed block. Only this table decides residency: another process'
// driver may evict a chunk, which raises its generation.
struct Chunk {
  uint64_t address;
  int32_t prev, next;
  uint32_t generation;
  uint32_t bytes;
  uint32_t out_bytes;  // bytes that an eviction copies; 0: duplicate or discarded
  int16_t slot;        // owner, -1: free
  int16_t list;        // kUsed or kUnused
};

// One direction and kind of traffic, served in the order of arrival.
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
  int32_t fresh;       // entries from here on were never used
  std::atomic<uint32_t> xid_count;
  uint32_t xid[kMaxXids];
};

struct Slot {
  std::atomic<int32_t> pid;  // as the process sees itself
  uint64_t start_time;       // of the process; identifies it together with pid and namespace
  uint64_t pid_namespace;
  std::atomic<int64_t> clock;     // it does not use a card before this time
  std::atomic<uint32_t> running;  // takes part in the common clock
  std::atomic<uint32_t> waiting;  // for others' clocks, so it is not idle
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
  std::atomic<uint32_t> tickets;  // of processes that start together
  Slot slots[kMaxSlots];
  Card card[kMaxCards];
};

class SharedState {
 public:
  // Maps the state. Exits with 2 and a message if the file is another profile's or cannot be used.
  explicit SharedState(const Profile& profile);

  Header& header() { return *header_; }
  Card& card(int i) { return header_->card[i]; }
  Chunk& chunk(int card, int32_t i) { return chunks_[static_cast<size_t>(card) * header_->chunks_per_card + i]; }
  bool shared() const { return shared_; }

  // This process' slot: taken by the first call, released at exit, or reclaimed by others after the process ended.
  int Attach();
  void Detach();
  int slot() const { return slot_; }
  Slot& self() { return header_->slots[slot_]; }

  // Releases the memory of ended processes.
  void Reap();
  // The pid of the process in a used slot, as this process sees it in its pid namespace. 0: it runs, but is not visible
  // from here. -1: it has ended.
  int Owner(int slot);

  // Waits until no other running process can act before `time` minus the window. A process leaves the common clock
  // until its next call if all its threads sleep, or if it makes no call for SIMGPU_PATIENCE_MS of real time.
  void WaitForOthers(int64_t time);
  // Publishes this process' clock. Returns the time before which it must not act, since others may have passed it.
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
  int64_t window_ns_ = 0;  // 0: all processes' events in one order, so that runs repeat
  int64_t patience_ms_ = 1000;
};

uint64_t ProfileHash(const Profile& profile);

// The state of this process, made on first use.
SharedState& TheState();

}  // namespace simgpu

#endif  // SIMGPU_CORE_SHARED_STATE_H_
