// Each misuse ends the process with a message that names the launch and the block. Without misuse there is no message.
#include <sys/wait.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdio>
#include <string>

namespace {

struct Ended {
  int status;
  std::string output;
};

Ended Run(const std::string& scenario, const std::string& variables = "") {
  const std::string command = variables + " SIMGPU_DEADLOCK_MS=200 " SCENARIOS " " + scenario + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");  // NOLINT(bugprone-command-processor): the test's own program
  Ended e{-1, ""};
  if (pipe == nullptr) return e;
  char buffer[512];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) e.output += buffer;
  e.status = pclose(pipe);
  e.status = WIFEXITED(e.status) ? WEXITSTATUS(e.status) : -1;
  return e;
}

using Catch::Matchers::Matches;

}  // namespace

TEST_CASE("a program without misuse gets no message") {
  const Ended e = Run("clean");
  CHECK(e.status == 0);
  CHECK(e.output == "misuses 0\n");
}

TEST_CASE("misuse ends the process with a message") {
  struct Case {
    const char* scenario;
    const char* message;
  };
  const Case cases[] = {
      {"discard-in-use",
       "simgpu: misuse: discarded while in use: discard #\\d+ on stream \\d+ discards block 0x[0-9a-f]+ "
       "\\(allocation 0x[0-9a-f]+ \\+ 2097152\\) while operation #\\d+ on stream \\d+ still works on it\n"},
      {"discard-beside-a-transfer",
       "simgpu: misuse: discarded while it is being moved: discard #\\d+ on stream \\d+ discards block 0x[0-9a-f]+ "
       "\\(allocation 0x[0-9a-f]+ \\+ 33554432\\) while a transfer of it runs\n"},
      {"read-discarded",
       "simgpu: misuse: read of discarded data: launch #\\d+ 'empty' on stream \\d+ reads block "
       "0x[0-9a-f]+ \\(allocation 0x[0-9a-f]+ \\+ 8388608\\), which was discarded by operation #\\d+\n"},
      {"copy-discarded", "simgpu: misuse: read of discarded data: copy #\\d+ on the legacy stream reads block .*\n"},
      {"read-copy-of-discarded",
       "simgpu: misuse: read of discarded data: copy #\\d+ on the legacy stream reads block 0x[0-9a-f]+ "
       "\\(allocation 0x[0-9a-f]+ \\+ 4194305\\), which was discarded by operation #\\d+\n"},
      {"write-discarded",
       "simgpu: misuse: written by faults while discarded: launch #\\d+ 'empty' on stream \\d+ writes block "
       "0x[0-9a-f]+ \\(allocation 0x[0-9a-f]+ \\+ 2097152\\), which was discarded and not prefetched since\n"},
      {"reuse-while-in-use",
       "simgpu: misuse: range reused before its last use was over: launch #\\d+ 'empty' on stream \\d+ "
       "writes object 2 over block .* where object 1 is still in use by operation #\\d+ on stream \\d+\n"},
      {"reuse-overwritten",
       "simgpu: misuse: range reused before its last use was over: launch #\\d+ 'empty' on stream \\d+ "
       "reads object 1 in block .* and finds object 2, written by operation #\\d+\n"},
      {"promise",
       "simgpu: misuse: residency guarantee broken: launch #\\d+ 'empty' on stream \\d+ faulted 2097152 bytes.*\n"},
      {"use-after-free",
       "simgpu: misuse: use after free: launch #\\d+ 'empty' on stream \\d+ touches 0x[0-9a-f]+, in allocation "
       "0x[0-9a-f]+ that was freed by operation #\\d+\n"},
      {"use-after-async-free", "simgpu: misuse: use after free: launch #\\d+ .*\n"},
      {"async-free-in-use",
       "simgpu: misuse: freed while in use: block 0x[0-9a-f]+ .* while operation #\\d+ on stream \\d+ still works on "
       "it\n"},
      {"unmap-in-use",
       "simgpu: misuse: unmapped while in use: block 0x[0-9a-f]+ .* while operation #\\d+ on stream \\d+ still works "
       "on it\n"},
      {"unmapped", "simgpu: misuse: access to unmapped memory: launch #\\d+ 'empty' on stream \\d+ touches .*\n"},
      {"capture",
       "simgpu: misuse: call during a capture: cuMemAlloc_v2 gave CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED on stream "
       ".*\n"},
      {"capture-prefetch",
       "simgpu: misuse: call during a capture: cuMemPrefetchAsync_v2 gave "
       "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED on stream .*\n"},
      {"capture-legacy",
       "simgpu: misuse: call during a capture: .* gave CUDA_ERROR_STREAM_CAPTURE_IMPLICIT on stream .*\n"},
      {"deadlock",
       "simgpu: misuse: deadlock: the host waits for a stream .*stuck at wait for a value #\\d+.*no operation writes "
       "the value.*\n"},
  };
  for (const Case& c : cases) {
    DYNAMIC_SECTION(c.scenario) {
      const Ended e = Run(c.scenario);
      CHECK(e.status == 86);
      CHECK_THAT(e.output, Matches(c.message));
    }
  }
}

TEST_CASE("settings: misuse is only counted, ends with another status, or gives the driver's errors") {
  const Ended counted = Run("read-discarded", "SIMGPU_MISUSE=report");
  CHECK(counted.status == 0);
  CHECK_THAT(counted.output, Matches("(.|\n)*misuses [1-9]\\d*\n"));
  CHECK(Run("read-discarded", "SIMGPU_MISUSE_EXIT=9").status == 9);
  CHECK(Run("capture-error", "SIMGPU_CAPTURE=error").status == 0);
  const Ended wrong = Run("clean", "SIMGPU_MISUSE=sometimes");
  CHECK(wrong.status == 2);
  CHECK(wrong.output == "simgpu: SIMGPU_MISUSE='sometimes': abort and report are accepted\n");
  const Ended profile = Run("clean", "SIMGPU_PROFILE=no-such-card");
  CHECK(profile.status == 2);
  CHECK_THAT(
      profile.output,
      Matches(
          "simgpu: SIMGPU_PROFILE: 'no-such-card' is not accepted; accepted: a file, card-11g, card-8g, .*h200.*\n"));
}
