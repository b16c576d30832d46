// How every program of ours reads its command line. A mistake of the caller gives exit status 2 and one line on stderr:
// the name, the value and the accepted values. Used before a program starts threads.
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

// The mistake in one line, without the program's name.
inline std::string UsageError(const CLI::App& app, const std::string& program, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string typed = program;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    typed += " " + command->get_name();
  }
  const auto subcommands = command->get_subcommands([](const CLI::App*) { return true; });
  const std::vector<std::string> unknown = command->remaining();
  std::string text;
  if (!subcommands.empty()) {
    text =
        unknown.empty() ? "no subcommand is given; accepted:" : "'" + unknown.front() + "' is not accepted; accepted:";
    for (const CLI::App* one : subcommands) text += (one == subcommands.front() ? " " : ", ") + one->get_name();
  } else if (!unknown.empty()) {
    // Before a missing option: the unknown word is often a mistyped one.
    text = "'" + unknown.front() + "' is not accepted; accepted: the words of " + typed + " --help";
  } else {
    text = error.what();
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// CLI::Range for numbers with a fraction. That accepts "nan", which is neither below the minimum nor above the maximum.
inline CLI::Validator Between(double low, double high) {
  const CLI::Range range(low, high);
  return {[range](std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return "'" + text + "' is no number";
            return range(text);
          },
          range.get_description()};
}

// Checks at the program's end that its output was written. On a full disk a table would be cut off, with exit status 0.
inline void CheckStdoutAtExit(const std::string& program) {
  static std::string name;
  name = program;
  std::atexit([] {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
    std::fprintf(stderr, "%s: stdout: %s\n", name.c_str(), std::strerror(errno));
    _exit(1);
  });
}

// Empty: the program continues. Else its exit status; the message is printed.
inline std::optional<int> ReadCommandLine(CLI::App& app, const std::string& program, int argc,
                                          const char* const* argv) {
  CheckStdoutAtExit(program);
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::RuntimeError& error) {  // of a subcommand's callback, which printed its message
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "%s: %s\n", program.c_str(), UsageError(app, program, error).c_str());
    return 2;
  }
}

}  // namespace sluice

#endif  // SLUICE_COMMON_COMMAND_LINE_H_
