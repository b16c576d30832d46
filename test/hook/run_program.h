// Runs a program and keeps its output.
#ifndef SLUICE_TEST_HOOK_RUN_PROGRAM_H_
#define SLUICE_TEST_HOOK_RUN_PROGRAM_H_

#include <string>
#include <vector>

namespace sluice::test {

struct Outcome {
  int status = -1;  // exit status, or 128 + signal
  std::string out, err;
};

// env: "NAME=value" added to a small fixed environment (PATH, HOME); the test's own LD_* never leak in.
Outcome Run(const std::vector<std::string>& argv, const std::vector<std::string>& env);

}  // namespace sluice::test

#endif  // SLUICE_TEST_HOOK_RUN_PROGRAM_H_
