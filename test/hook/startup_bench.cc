// The cost of the preload for a process that never loads CUDA: starts a program that does nothing, with and without the
// preload in turn. A report: it prints medians and never fails. Goal: 200 us.
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace {

double StartMicroseconds(const char* program, char* const* variables) {
  std::array<char*, 2> arguments{const_cast<char*>(program), nullptr};
  const auto begin = std::chrono::steady_clock::now();
  pid_t pid = 0;
  if (posix_spawn(&pid, program, nullptr, nullptr, arguments.data(), variables) != 0) return -1;
  int status = 0;
  waitpid(pid, &status, 0);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: startup_bench SHIM PROGRAM\n");
    return 2;
  }
  std::string preload = std::string("LD_PRELOAD=") + argv[1];
  std::array<char*, 2> hooked{preload.data(), nullptr};
  std::array<char*, 1> plain{nullptr};
  constexpr int kRounds = 600;
  std::vector<double> with, without, difference;
  for (int i = 0; i < kRounds; ++i) {
    without.push_back(StartMicroseconds(argv[2], plain.data()));
    with.push_back(StartMicroseconds(argv[2], hooked.data()));
    difference.push_back(with.back() - without.back());
  }
  std::printf(
      "start of a process without CUDA, median of %d: plain %.0f us, preloaded %.0f us, median difference %.0f us "
      "(goal 200)\n",
      kRounds, Median(without), Median(with), Median(difference));
  return 0;
}
