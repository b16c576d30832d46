// top: the table, again and again.
#include <grpcpp/grpcpp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <sstream>

#include "cli/agent_connection.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/views.h"
#include "common/command_line.h"

namespace sluice::cli {
namespace {

struct Options {
  std::string run_dir, output = "text";
  bool once = false;
  double interval = 1;
};

volatile std::sig_atomic_t g_stop = 0;

// Cut to the terminal's lines and columns: a longer table is not wrapped.
std::string Fit(const std::string& text) {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return text;
  std::istringstream in(text);
  std::string out, line;
  for (int n = 1; std::getline(in, line) && n < size.ws_row; ++n) out += line.substr(0, size.ws_col) + "\x1b[K\n";
  return out;
}

void Top(const Options& o) {
  const bool json = o.output == "json";
  // A pipe gets plain text; only a terminal is repainted.
  const bool paint = !json && !o.once && isatty(STDOUT_FILENO) == 1;
  std::signal(SIGINT, [](int) { g_stop = 1; });
  std::signal(SIGTERM, [](int) { g_stop = 1; });
  auto stub = NeedAgent(o.run_dir);
  grpc::ClientContext context;
  v1::WatchStatusRequest request;
  request.set_interval_ms(static_cast<uint32_t>(o.interval * 1000));
  auto stream = stub->WatchStatus(&context, request);
  v1::Status before, now;
  bool have_before = false;
  if (paint) std::fputs("\x1b[?1049h\x1b[?25l", stdout);  // the alternate screen, no cursor
  while (g_stop == 0 && stream->Read(&now)) {
    if (json) {
      std::fputs(ToJson(now).c_str(), stdout);
    } else {
      const std::string text = TopText(have_before ? &before : nullptr, now);
      std::fputs(paint ? ("\x1b[H" + Fit(text) + "\x1b[J").c_str() : text.c_str(), stdout);
    }
    std::fflush(stdout);
    if (o.once) break;
    before = now;
    have_before = true;
  }
  if (paint) std::fputs("\x1b[?25h\x1b[?1049l", stdout);
  const bool ended = o.once || g_stop != 0;
  context.TryCancel();
  const grpc::Status r = stream->Finish();
  if (!ended) Fail(1, "the agent ended the stream: " + r.error_message());
}

}  // namespace

void AddTopCommand(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("top", "live table of containers, the most stalled first");
  AddRunDirOption(*command, &o->run_dir);
  command->add_flag("--once", o->once, "print one table and end");
  command->add_option("--interval", o->interval, "seconds between tables")
      ->check(Between(0.1, 60.0))
      ->capture_default_str();
  command->add_option("-o,--output", o->output, "text or json")->check([](const std::string& v) -> std::string {
    return v == "text" || v == "json" ? "" : "'" + v + "' is not accepted; accepted: text, json";
  });
  command->callback([o] { Top(*o); });
}

}  // namespace sluice::cli
