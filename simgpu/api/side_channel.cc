// simgpu.h: the side channel of tests and replayers; the files that are written at exit.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "../core/misuse.h"
#include "../simgpu.h"
#include "call.h"

using simgpu::Sim;

namespace {

void Fill(int device, struct simgpu_stats* s) {
  const simgpu::CardFigures& f = Sim().figures(device);
  const simgpu::Card& card = Sim().state().card(device);
  const simgpu::Slot& self = Sim().state().self();
  s->now_ns = static_cast<uint64_t>(Sim().worked_until());
  s->launches = f.launches;
  s->kernel_ns = f.kernel_ns;
  s->stall_ns = f.stall_ns;
  s->fault_bytes = f.fault_bytes;
  s->prefetch_in_bytes = f.prefetch_in;
  s->prefetch_out_bytes = f.prefetch_out;
  s->evicted_bytes = f.evicted;
  s->copy_in_bytes = f.copy_in;
  s->copy_out_bytes = f.copy_out;
  s->remote_bytes = f.remote;
  s->discarded_bytes = f.discarded;
  s->duplicate_write_bytes = f.duplicate_write;
  s->resident_bytes = self.managed[device];
  s->resident_peak_bytes = f.resident_peak;
  s->unmanaged_bytes = self.unmanaged[device];
  s->evicted_in_use_bytes = f.evicted_in_use;
  s->races = f.races;
  s->misuses = simgpu::MisuseCount();
  s->managed_requested_bytes = Sim().memory().managed_requested;
  s->card_used_bytes = card.unmanaged_used + card.managed_used;
  s->card_total_bytes = static_cast<uint64_t>(Sim().profile().memory);
  s->calls = simgpu::ThisThread().calls;
  s->prefetch_unused_bytes = Sim().memory().Unused(device);
}

void WriteStats() {
  const char* name = std::getenv("SIMGPU_STATS");
  if (name == nullptr || *name == '\0') return;
  std::string path = name;
  const auto at = path.find("%p");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  FILE* out = std::fopen(path.c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "simgpu: SIMGPU_STATS=%s cannot be written\n", path.c_str());
    return;
  }
  std::fprintf(out, "{\"pid\":%d,\"cards\":[", getpid());
  for (int d = 0; d < Sim().profile().gpus; ++d) {
    struct simgpu_stats s{};
    Fill(d, &s);
    std::fprintf(out, "%s{", d == 0 ? "" : ",");
#define OUT(field) std::fprintf(out, "\"" #field "\":%llu,", static_cast<unsigned long long>(s.field))
    OUT(now_ns);
    OUT(launches);
    OUT(kernel_ns);
    OUT(stall_ns);
    OUT(fault_bytes);
    OUT(prefetch_in_bytes);
    OUT(prefetch_out_bytes);
    OUT(evicted_bytes);
    OUT(copy_in_bytes);
    OUT(copy_out_bytes);
    OUT(remote_bytes);
    OUT(discarded_bytes);
    OUT(duplicate_write_bytes);
    OUT(resident_bytes);
    OUT(resident_peak_bytes);
    OUT(unmanaged_bytes);
    OUT(evicted_in_use_bytes);
    OUT(races);
    OUT(misuses);
    OUT(managed_requested_bytes);
    OUT(card_used_bytes);
    OUT(prefetch_unused_bytes);
#undef OUT
    std::fprintf(out, "\"card_total_bytes\":%llu}", static_cast<unsigned long long>(s.card_total_bytes));
  }
  std::fputs("]}\n", out);
  std::fclose(out);
}

void WriteAll() {
  WriteStats();
  Sim().timeline().Write();
}

// Operations that are queued when the process ends do not run, and its memory is released.
struct AtExit {
  AtExit() { simgpu::SetMisuseFlush(WriteAll); }
  ~AtExit() {
    auto& d = simgpu::TheDriver();
    if (!d.initialised || d.forked) return;
    simgpu::Simulator::Lock lock(Sim().mutex, std::try_to_lock);
    if (lock.owns_lock()) {
      Sim().CatchUp(lock);
      WriteAll();
      Sim().state().Detach();
    }  // else the process ends inside a call, and is treated as killed
    d.forked = true;  // later calls fail instead of using destroyed objects
  }
};
AtExit g_at_exit;

bool Ready(int device) { return simgpu::TheDriver().initialised && device >= 0 && device < Sim().profile().gpus; }

}  // namespace

extern "C" {

int simgpu_next_launch(const simgpu_touch* touches, size_t count, uint64_t duration_ns, uint32_t flags) {
  simgpu::ThreadState& thread = simgpu::ThisState();
  thread.touches.resize(count);
  for (size_t i = 0; i < count; ++i) {
    thread.touches[i] = {touches[i].address, touches[i].length, touches[i].access, touches[i].object};
  }
  thread.duration = static_cast<int64_t>(duration_ns);
  thread.flags = flags;
  thread.described = true;
  return 0;
}

int simgpu_next_sets(uint64_t handle, const unsigned* values, size_t count) {
  if (count == 0) return -1;
  simgpu::ThreadState& thread = simgpu::ThisState();
  thread.sets = handle;
  thread.values.assign(values, values + count);
  return 0;
}

uint64_t simgpu_now_ns(void) { return static_cast<uint64_t>(simgpu::ThisThread().now); }
void simgpu_advance_host(uint64_t ns) { simgpu::ThisThread().now += static_cast<int64_t>(ns); }

int simgpu_stats(int device, struct simgpu_stats* out) {
  if (out == nullptr || out->size != sizeof *out || !Ready(device)) return -1;
  simgpu::Simulator::Lock lock(Sim().mutex);
  Sim().CatchUp(lock);
  Fill(device, out);
  return 0;
}

int simgpu_read_mostly(uint64_t address, uint64_t length) {
  int value = 0;
  return cuMemRangeGetAttribute(&value, sizeof value, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, length) ==
             CUDA_SUCCESS &&
         value != 0;
}

uint64_t simgpu_resident_bytes(uint64_t address, uint64_t length) {
  if (!Ready(0)) return 0;
  simgpu::Simulator::Lock lock(Sim().mutex);
  Sim().CatchUp(lock);
  return Sim().ResidentBytes(address, length);
}

uint64_t simgpu_digest(uint64_t address, uint64_t length) {
  if (!Ready(0)) return 0;
  simgpu::Simulator::Lock lock(Sim().mutex);
  Sim().CatchUp(lock);
  return Sim().Digest(address, length);
}

const char* simgpu_last_misuse(void) { return simgpu::LastMisuse(); }

void simgpu_mark(const char* name) {
  if (!Ready(0) || name == nullptr) return;
  simgpu::Simulator::Lock lock(Sim().mutex);
  Sim().timeline().Mark(name, simgpu::ThisThread().now);
}

int simgpu_inject_xid(int device, uint32_t xid) {
  if (!Ready(device)) return -1;
  simgpu::SharedState::Lock lock(Sim().state());
  simgpu::Card& card = Sim().state().card(device);
  card.xid[card.xid_count % simgpu::kMaxXids] = xid;
  ++card.xid_count;
  return 0;
}

// For the simulated NVML in the same process: the same state, private or shared.
__attribute__((visibility("default"))) void* simgpu_state(void) { return &simgpu::TheState(); }

}  // extern "C"
