// How every program of ours reads its command line: what its caller wrote wrong is one line on stderr that says the
// name, the value and what is accepted, and exit status 2.
#ifndef SLUICE_COMMON_COMMAND_LINE_H_
#define SLUICE_COMMON_COMMAND_LINE_H_

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

// One line, without the program's name.
inline std::string WhatWasWrittenWrong(const CLI::App& app, const std::string& program, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string typed = program;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    typed += " " + command->get_name();
  }
  const auto subcommands = command->get_subcommands([](const CLI::App*) { return true; });
  const std::vector<std::string> unknown = command->remaining();
  std::string said;
  if (!subcommands.empty()) {
    said =
        unknown.empty() ? "no subcommand is given; accepted:" : "'" + unknown.front() + "' is not accepted; accepted:";
    for (const CLI::App* one : subcommands) said += (one == subcommands.front() ? " " : ", ") + one->get_name();
  } else if (!unknown.empty()) {
    // Said before what is missing: that is often what the unknown word was meant to be.
    said = "'" + unknown.front() + "' is not accepted; accepted: what " + typed + " --help names";
  } else {
    said = error.what();
  }
  std::replace(said.begin(), said.end(), '\n', ' ');
  return said;
}

// CLI::Range for numbers with a fraction, which "nan" passes: it is not below the one end and not above the other.
inline CLI::Validator Between(double low, double high) {
  const CLI::Range range(low, high);
  return {[range](std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return "'" + text + "' is no number";
            return range(text);
          },
          range.get_description()};
}

// At the program's end: what was printed must have reached its reader. On a full disk a table that was cut off would
// look whole, with exit status 0.
inline void MindStdout(const std::string& program) {
  static std::string name;
  name = program;
  std::atexit([] {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
    std::fprintf(stderr, "%s: stdout: %s\n", name.c_str(), std::strerror(errno));
    _exit(1);
  });
}

// Empty: the program goes on. Else its exit status; what is to be said has been said.
inline std::optional<int> ReadCommandLine(CLI::App& app, const std::string& program, int argc,
                                          const char* const* argv) {
  MindStdout(program);
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::RuntimeError& error) {  // from a subcommand's callback, which has spoken for itself
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "%s: %s\n", program.c_str(), WhatWasWrittenWrong(app, program, error).c_str());
    return 2;
  }
}

}  // namespace sluice

#endif  // SLUICE_COMMON_COMMAND_LINE_H_
