// One of several processes on one card: uses a working set repeatedly by faults and prefetches, then prints its figures
// as "key value" lines. Arguments: GiB, rounds, and one of
//   sleep      after each round it sleeps until FILE.wake exists
//   die        it exits half-way
//   launching  rounds without end, for a kill during launches
//   hold       it holds unmanaged memory without launches until stdin ends
//   busy       rounds until stdin ends
// The last three print "ready" when they have started.
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "card.h"

using namespace simgpu_test;  // NOLINT(google-build-using-namespace)

// Until the test creates the file, or two minutes.
void SleepUntilWoken() {
  const char* const state = std::getenv("SIMGPU_STATE");
  const std::string sign = std::string(state != nullptr ? state : "") + ".wake";
  for (int i = 0; i < 12'000 && access(sign.c_str(), F_OK) != 0; ++i) usleep(10'000);
}

void Ready() {
  std::puts("ready");
  std::fflush(stdout);
}

bool Ended() {
  struct pollfd in{0, POLLIN, 0};
  return poll(&in, 1, 0) > 0;
}

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  const std::string how = argc > 3 ? argv[3] : "";
  const auto bytes = static_cast<uint64_t>(std::atof(argv[1]) * static_cast<double>(kGiB));
  const int rounds = std::atoi(argv[2]);
  Card card;
  CUstream s = card.Stream();
  if (how == "hold") {
    const CUdeviceptr held = card.Unmanaged(bytes);
    Ready();
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    OK(cuMemFree(held));
    return 0;
  }
  CUdeviceptr p = card.Managed(bytes);
  card.Launch(s, {Write(p, bytes)});
  OK(cuStreamSynchronize(s));
  const uint64_t from = simgpu_now_ns();
  const bool endless = how == "busy" || how == "launching";
  if (endless) Ready();
  for (int i = 0; endless ? how == "launching" || !Ended() : i < rounds; ++i) {
    for (uint64_t at = 0; at < bytes; at += 64 * kMiB)
      card.Launch(s, {Update(p + at, std::min(64 * kMiB, bytes - at))}, 500'000);
    OK(cuStreamSynchronize(s));
    if (how == "sleep") SleepUntilWoken();
    if (how == "die" && i == rounds / 2) _exit(9);
  }
  const uint64_t until = simgpu_now_ns();
  const auto stats = card.Stats();
  std::printf("ns %llu\nfault_bytes %llu\nresident_bytes %llu\ncard_used_bytes %llu\n",
              static_cast<unsigned long long>(until - from), static_cast<unsigned long long>(stats.fault_bytes),
              static_cast<unsigned long long>(stats.resident_bytes),
              static_cast<unsigned long long>(stats.card_used_bytes));
  return 0;
}
