// The shared state after a process was killed between two stores.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "../core/shared_state.h"

namespace simgpu {
namespace {

// The invariants that every walk over the lists relies on.
void CheckWhole(SharedState& state) {
  uint64_t bytes = 0;
  std::set<int32_t> seen;
  for (int l = 0; l < kLists; ++l) {
    int32_t before = -1;
    for (int32_t i = state.card(0).head[l]; i >= 0; i = state.chunk(0, i).next) {
      REQUIRE(seen.insert(i).second);
      const Chunk& k = state.chunk(0, i);
      REQUIRE(k.prev == before);
      REQUIRE(k.list == l);
      REQUIRE(k.slot == state.slot());
      bytes += k.bytes;
      before = i;
    }
    REQUIRE(state.card(0).tail[l] == before);
  }
  CHECK(state.card(0).managed_used == bytes);
  CHECK(state.self().managed[0] == bytes);
  for (int32_t i = state.card(0).free_chunk; i >= 0; i = state.chunk(0, i).next) REQUIRE(seen.insert(i).second);
  CHECK(seen.size() == static_cast<size_t>(state.card(0).fresh));
  CHECK(state.card(0).unmanaged_used == static_cast<uint64_t>(TheProfile().reserve) + state.self().unmanaged[0]);
}

}  // namespace

TEST_CASE("after a process was killed between two stores, the next one finds consistent lists and sums") {
  using Torn = std::function<void(SharedState&, const std::vector<int32_t>&)>;
  const Torn torn[] = {
      // Half of unlinking its second entry.
      [](SharedState& s, const std::vector<int32_t>& own) {
        const Chunk& k = s.chunk(0, own[1]);
        s.chunk(0, k.prev).next = k.next;
      },
      [](SharedState& s, const std::vector<int32_t>& own) {
        const Chunk& k = s.chunk(0, own[1]);
        s.chunk(0, k.next).prev = k.prev;
      },
      // Half of appending an entry.
      [](SharedState& s, const std::vector<int32_t>& own) { s.card(0).tail[kUsed] = own[0]; },
      [](SharedState& s, const std::vector<int32_t>& own) { s.chunk(0, own[2]).next = own[0]; },
      // Half of allocating an entry, half of releasing one.
      [](SharedState& s, const std::vector<int32_t>&) { ++s.card(0).fresh; },
      [](SharedState& s, const std::vector<int32_t>& own) { s.chunk(0, own[1]).slot = -1; },
      [](SharedState& s, const std::vector<int32_t>&) { s.card(0).managed_used += kBlockBytes; },
      [](SharedState& s, const std::vector<int32_t>&) { s.card(0).unmanaged_used += kBlockBytes; },
  };
  for (const Torn& tear : torn) {
    char path[] = "/tmp/simgpu-state-XXXXXX";
    close(mkstemp(path));
    unlink(path);
    setenv("SIMGPU_STATE", path, 1);
    SharedState ours(TheProfile());
    ours.Attach();
    std::vector<int32_t> kept;
    const auto take = [](SharedState& s, std::vector<int32_t>* own) {
      SharedState::Lock lock(s);
      own->push_back(s.TakeChunk(0, kBlockBytes * (own->size() + 1), kBlockBytes));
    };
    take(ours, &kept);
    int here[2], there[2];
    REQUIRE(pipe(here) == 0);
    REQUIRE(pipe(there) == 0);
    const pid_t child = fork();
    if (child == 0) {  // its entries are between two of ours
      SharedState theirs(TheProfile());
      theirs.Attach();
      std::vector<int32_t> own;
      for (int i = 0; i < 3; ++i) take(theirs, &own);
      char byte = 0;
      if (write(there[1], &byte, 1) != 1 || read(here[0], &byte, 1) != 1) _exit(1);
      SharedState::Lock lock(theirs);
      tear(theirs, own);
      kill(getpid(), SIGKILL);
    }
    char byte = 0;
    REQUIRE(read(there[0], &byte, 1) == 1);
    take(ours, &kept);
    REQUIRE(write(here[1], &byte, 1) == 1);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    for (const int end : {here[0], here[1], there[0], there[1]}) close(end);
    {
      SharedState::Lock lock(ours);
      CheckWhole(ours);
    }
    for (int i = 0; i < 64; ++i) take(ours, &kept);
    SharedState::Lock lock(ours);
    CheckWhole(ours);
    CHECK(std::set<int32_t>(kept.begin(), kept.end()).size() == kept.size());
    for (const int32_t i : kept) ours.ReleaseChunk(0, i);
    CheckWhole(ours);
    CHECK(ours.card(0).managed_used == 0);
    unlink(path);
  }
}

}  // namespace simgpu
