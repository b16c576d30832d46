#include "shared_state.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>
#include <vector>

namespace simgpu {
namespace {

constexpr uint64_t kMagic = 0x53494d4750550006;
constexpr off_t kLocks = off_t{1} << 40;  // a byte a slot, far behind the file's end

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "simgpu: %s\n", message.c_str());
  std::_Exit(2);
}

// Field 22 of /proc/PID/stat; 0 when there is no such process.
uint64_t StartTime(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(in, line)) return 0;
  const auto paren = line.rfind(')');
  if (paren == std::string::npos) return 0;
  std::istringstream rest(line.substr(paren + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

uint64_t PidNamespace() {
  struct stat st{};
  return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

struct flock ByteOf(int slot) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLocks + slot;
  lock.l_len = 1;
  return lock;
}

int64_t EnvNumber(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const int64_t value = std::strtoll(text, &end, 10);
  if (*end != '\0' || value < 0) Die(std::string(name) + "='" + text + "': a whole number >= 0 is accepted");
  return value;
}

}  // namespace

uint64_t ProfileHash(const Profile& p) {
  uint64_t h = 1469598103934665603ull;
  for (const int64_t v : {p.gpus, p.memory, p.reserve, p.driver}) {
    h = (h ^ static_cast<uint64_t>(v)) * 1099511628211ull;
  }
  return h;
}

SharedState::SharedState(const Profile& profile) {
  window_ns_ = EnvNumber("SIMGPU_WINDOW_US", 0) * 1000;
  patience_ms_ = EnvNumber("SIMGPU_PATIENCE_MS", 1000);
  const auto chunks = static_cast<uint32_t>(profile.memory / static_cast<int64_t>(kBlockBytes) * 2 + 1024);
  const size_t size = sizeof(Header) + sizeof(Chunk) * chunks * static_cast<size_t>(profile.gpus);
  const char* path = std::getenv("SIMGPU_STATE");
  shared_ = path != nullptr && *path != '\0';
  int fd = -1;
  if (shared_) {
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) Die(std::string("SIMGPU_STATE=") + path + ": " + std::strerror(errno));
    flock(fd, LOCK_EX);  // while it is created; later the mutex inside protects it
    struct stat st;
    if (fstat(fd, &st) != 0 ||
        (st.st_size < static_cast<off_t>(size) && ftruncate(fd, static_cast<off_t>(size)) != 0)) {
      Die(std::string("SIMGPU_STATE=") + path + ": " + std::strerror(errno));
    }
  }
  void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                   shared_ ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, fd, 0);
  if (map == MAP_FAILED) Die(std::string("the state cannot be mapped: ") + std::strerror(errno));
  header_ = static_cast<Header*>(map);
  chunks_ = reinterpret_cast<Chunk*>(static_cast<char*>(map) + sizeof(Header));
  if (header_->magic == 0) {
    Create(profile, chunks);
  } else if (header_->magic != kMagic || header_->profile_hash != ProfileHash(profile)) {
    Die(std::string("SIMGPU_STATE=") + path + ": made for another profile or version; give each its own file");
  }
  if (fd >= 0) flock(fd, LOCK_UN);
  fd_ = fd;
}

void SharedState::Create(const Profile& profile, uint32_t chunks) {
  new (header_) Header{};
  header_->profile_hash = ProfileHash(profile);
  header_->cards = static_cast<uint32_t>(profile.gpus);
  header_->chunks_per_card = chunks;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  if (shared_) {
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  }
  pthread_mutex_init(&header_->mutex, &attributes);
  for (int c = 0; c < profile.gpus; ++c) {
    Card& card = header_->card[c];
    card.unmanaged_used = static_cast<uint64_t>(profile.reserve);
    for (int l = 0; l < kLists; ++l) card.head[l] = card.tail[l] = -1;
    card.free_chunk = -1;
  }
  header_->magic = kMagic;
}

SharedState::Lock::Lock(SharedState& s) : state_(s) {
  const int result = pthread_mutex_lock(&s.header_->mutex);
  if (result == EOWNERDEAD) {
    // A process was killed between two stores.
    pthread_mutex_consistent(&s.header_->mutex);
    s.Rebuild();
    s.ReapLocked();
  } else if (result != 0) {
    Die(std::string("the state cannot be locked: ") + std::strerror(result));
  }
}

SharedState::Lock::~Lock() { pthread_mutex_unlock(&state_.header_->mutex); }

int SharedState::Attach() {
  if (slot_ >= 0) return slot_;
  Lock lock(*this);
  ReapLocked();
  for (int i = 0; i < kMaxSlots; ++i) {
    Slot& s = header_->slots[i];
    if (s.pid != 0) continue;
    for (int c = 0; c < kMaxCards; ++c) s.unmanaged[c] = s.managed[c] = s.evicted[c] = 0;
    s.start_time = StartTime(getpid());
    s.pid_namespace = PidNamespace();
    struct flock mine = ByteOf(i);
    if (shared_ && fcntl(fd_, F_SETLK, &mine) != 0)
      continue;  // its last process has released the slot but has not ended yet
    // A new process starts at the clock of the slowest running one.
    int64_t now = INT64_MAX;
    for (Slot& other : header_->slots) {
      if (other.pid != 0 && other.running != 0) now = std::min<int64_t>(now, other.clock);
    }
    s.clock = now == INT64_MAX ? header_->now.load() : now;
    s.running = 0;
    std::ifstream comm("/proc/self/comm");
    std::string name;
    std::getline(comm, name);
    std::snprintf(s.name, sizeof s.name, "%s", name.c_str());
    s.pid = getpid();
    slot_ = i;
    return i;
  }
  Die("more than " + std::to_string(kMaxSlots) + " processes on one card state");
}

void SharedState::Detach() {
  if (slot_ < 0) return;
  Lock lock(*this);
  Slot& s = self();
  for (uint32_t c = 0; c < header_->cards; ++c) {
    for (int l = 0; l < kLists; ++l) {
      for (int32_t i = header_->card[c].head[l]; i >= 0;) {
        const int32_t next = chunk(static_cast<int>(c), i).next;
        if (chunk(static_cast<int>(c), i).slot == slot_) ReleaseChunk(static_cast<int>(c), i);
        i = next;
      }
    }
    header_->card[c].unmanaged_used -= s.unmanaged[c].exchange(0);
  }
  s.running = 0;
  s.pid = 0;
  slot_ = -1;
}

void SharedState::Reap() {
  Lock lock(*this);
  ReapLocked();
}

// A process that was killed may leave any of this half done: an entry in no list or in two, a sum without its part. The
// entries themselves tell which memory is used. The eviction order is kept as far as the lists can be followed.
void SharedState::Rebuild() {
  const auto in_use = [this](int n, int32_t i) {
    const int slot = chunk(n, i).slot;
    return slot >= 0 && header_->slots[slot].pid != 0;
  };
  for (Slot& s : header_->slots) {
    for (uint32_t c = 0; c < header_->cards; ++c) s.managed[c] = 0;
  }
  for (uint32_t n = 0; n < header_->cards; ++n) {
    const int index = static_cast<int>(n);
    Card& c = card(index);
    std::vector<bool> seen(static_cast<size_t>(c.fresh));
    std::vector<int32_t> order[kLists];
    const auto take = [&](int32_t i, int list) {
      if (i < 0 || i >= c.fresh || seen[static_cast<size_t>(i)] || !in_use(index, i)) return false;
      seen[static_cast<size_t>(i)] = true;
      order[list].push_back(i);
      return true;
    };
    for (int l = 0; l < kLists; ++l) {
      for (int32_t i = c.head[l]; take(i, l);) i = chunk(index, i).next;
    }
    for (int32_t i = 0; i < c.fresh; ++i) take(i, kUsed);
    for (int l = 0; l < kLists; ++l) c.head[l] = c.tail[l] = -1;
    c.free_chunk = -1;
    c.managed_used = 0;
    for (int l = 0; l < kLists; ++l) {
      for (const int32_t i : order[l]) {
        const Chunk& k = chunk(index, i);
        Append(index, i, static_cast<ChunkList>(l));
        c.managed_used += k.bytes;
        header_->slots[k.slot].managed[n] += k.bytes;
      }
    }
    for (int32_t i = 0; i < c.fresh; ++i) {
      if (seen[static_cast<size_t>(i)]) continue;
      chunk(index, i).slot = -1;
      chunk(index, i).next = c.free_chunk;
      c.free_chunk = i;
    }
    c.unmanaged_used = static_cast<uint64_t>(TheProfile().reserve);
    for (const Slot& s : header_->slots) c.unmanaged_used += s.pid != 0 ? s.unmanaged[n].load() : 0;
  }
}

// The owner of a slot holds a lock on its byte of the file. The kernel releases it when the process ends, and names the
// owner's pid as the caller sees it, across pid namespaces. It is a lock of the process, since a forked child would
// keep one of the open file. The first close of any descriptor of this file would release it, so none is closed.
int SharedState::Owner(int slot) {
  const Slot& s = header_->slots[slot];
  // A process' own lock does not conflict. The process may hold this library twice (driver and NVML), so the slot's
  // identity is compared.
  if (!shared_ || (s.pid == getpid() && s.pid_namespace == PidNamespace() && s.start_time == StartTime(getpid())))
    return getpid();
  struct flock lock = ByteOf(slot);
  if (fcntl(fd_, F_GETLK, &lock) != 0) return 0;
  return lock.l_type == F_UNLCK ? -1 : std::max<int>(lock.l_pid, 0);
}

void SharedState::ReapLocked() {
  for (int i = 0; i < kMaxSlots; ++i) {
    Slot& s = header_->slots[i];
    if (s.pid == 0 || Owner(i) >= 0) continue;
    for (uint32_t c = 0; c < header_->cards; ++c) {
      for (int l = 0; l < kLists; ++l) {
        for (int32_t k = header_->card[c].head[l]; k >= 0;) {
          const int32_t next = chunk(static_cast<int>(c), k).next;
          if (chunk(static_cast<int>(c), k).slot == i) ReleaseChunk(static_cast<int>(c), k);
          k = next;
        }
      }
      header_->card[c].unmanaged_used -= s.unmanaged[c].exchange(0);
      s.managed[c] = 0;
    }
    s.running = 0;
    s.pid = 0;
  }
}

void SharedState::Unlink(int card_index, int32_t i) {
  Card& c = card(card_index);
  Chunk& k = chunk(card_index, i);
  (k.prev >= 0 ? chunk(card_index, k.prev).next : c.head[k.list]) = k.next;
  (k.next >= 0 ? chunk(card_index, k.next).prev : c.tail[k.list]) = k.prev;
}

void SharedState::Append(int card_index, int32_t i, ChunkList list) {
  Card& c = card(card_index);
  Chunk& k = chunk(card_index, i);
  k.list = list;
  k.next = -1;
  k.prev = c.tail[list];
  (k.prev >= 0 ? chunk(card_index, k.prev).next : c.head[list]) = i;
  c.tail[list] = i;
}

int32_t SharedState::TakeChunk(int card_index, uint64_t address, uint32_t bytes) {
  Card& c = card(card_index);
  int32_t i = c.free_chunk;
  if (i >= 0) {
    c.free_chunk = chunk(card_index, i).next;
  } else {
    if (static_cast<uint32_t>(c.fresh) >= header_->chunks_per_card) return -1;
    i = c.fresh;
    chunk(card_index, i).slot = -1;
    ++c.fresh;
  }
  Chunk& k = chunk(card_index, i);
  k.address = address;
  k.bytes = bytes;
  k.out_bytes = bytes;
  k.slot = static_cast<int16_t>(slot_);
  ++k.generation;
  Append(card_index, i, kUsed);
  c.managed_used += bytes;
  self().managed[card_index] += bytes;
  return i;
}

void SharedState::ReleaseChunk(int card_index, int32_t i) {
  Chunk& k = chunk(card_index, i);
  Unlink(card_index, i);
  card(card_index).managed_used -= k.bytes;
  if (k.slot >= 0) header_->slots[k.slot].managed[card_index] -= k.bytes;
  k.slot = -1;
  ++k.generation;
  k.next = card(card_index).free_chunk;
  card(card_index).free_chunk = i;
}

void SharedState::MoveToTail(int card_index, int32_t i, ChunkList list) {
  Unlink(card_index, i);
  Append(card_index, i, list);
}

uint64_t SharedState::Used(int card_index) const {
  const Card& c = header_->card[card_index];
  return c.unmanaged_used + c.managed_used;
}

SharedState& TheState() {
  static auto* state = new SharedState(TheProfile());
  return *state;
}

}  // namespace simgpu
