// status, set, events.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <memory>

#include "cli/agent_connection.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"
#include "cli/text.h"
#include "cli/views.h"
#include "common/settings/settings.h"

namespace sluice::cli {
namespace {

struct Options {
  std::string run_dir, output = "text", id;
  std::vector<std::string> assignments;
  uint64_t after = 0;
};

void AddOutputOption(CLI::App& command, Options* o) {
  command.add_option("-o,--output", o->output, "text or json")->check([](const std::string& v) -> std::string {
    return v == "text" || v == "json" ? "" : "'" + v + "' is not accepted; accepted: text, json";
  });
}

std::string LocalTime(int64_t unix_ms) {
  const std::time_t t = unix_ms / 1000;
  std::tm local{};
  localtime_r(&t, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%F %T", &local);
  return text;
}

void Status(const Options& o) {
  grpc::ClientContext context;
  v1::Status status;
  const grpc::Status r = NeedAgent(o.run_dir)->GetStatus(&context, {}, &status);
  if (!r.ok()) FailCall(r);
  std::fputs((o.output == "json" ? ToJson(status) : StatusText(status)).c_str(), stdout);
}

void Set(const Options& o) {
  v1::SetRequest request;
  request.set_id(Printable(o.id));
  for (const std::string& a : o.assignments) {
    const size_t eq = a.find('=');
    if (eq == std::string::npos || eq == 0)
      Fail(2, "set: '" + Printable(a) + "' is not accepted; accepted: key=value, as memory-factor=80");
    (*request.mutable_settings())[Printable(a.substr(0, eq))] = Printable(a.substr(eq + 1));
  }
  grpc::ClientContext context;
  v1::SetResponse response;
  const grpc::Status r = NeedAgent(o.run_dir)->Set(&context, request, &response);
  if (!r.ok()) FailCall(r);
  if (!response.note().empty()) std::fprintf(stderr, "sluice: set: %s\n", response.note().c_str());
  if (o.output == "json") {
    std::fputs(ToJson(response).c_str(), stdout);
    return;
  }
  const std::map<std::string, std::string> sorted(response.settings().begin(), response.settings().end());
  for (const auto& [key, value] : sorted) std::printf("%s=%s\n", key.c_str(), value.c_str());
}

void Events(const Options& o) {
  v1::ListEventsRequest request;
  request.set_after(o.after);
  grpc::ClientContext context;
  v1::ListEventsResponse response;
  const grpc::Status r = NeedAgent(o.run_dir)->ListEvents(&context, request, &response);
  if (!r.ok()) FailCall(r);
  if (o.output == "json") {
    std::fputs(ToJson(response).c_str(), stdout);
    return;
  }
  Table table({">N", "TIME", "ALLOCATION", "EVENT", "TEXT"});
  for (const v1::Event& e : response.events()) {
    table.Add({std::to_string(e.number()), LocalTime(e.unix_ms()), e.allocation(), e.kind(), e.text()});
  }
  std::fputs(table.Text().c_str(), stdout);
}

}  // namespace

void AddStatusCommand(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("status", "the status of this node's agent");
  AddRunDirOption(*command, &o->run_dir);
  AddOutputOption(*command, o.get());
  command->callback([o] { Status(*o); });
}

void AddSetCommand(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("set", "change settings of a running container: sluice set ID key=value...");
  AddRunDirOption(*command, &o->run_dir);
  AddOutputOption(*command, o.get());
  command->add_option("ID", o->id, "allocation id, or a unique prefix of it")->required();
  command
      ->add_option("key=value", o->assignments, settings::SettableNames() + "; an empty value removes an earlier one")
      ->required();
  command->callback([o] { Set(*o); });
}

void AddEventsCommand(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("events", "events of this node: attached, refused, reclaim late, ...");
  AddRunDirOption(*command, &o->run_dir);
  AddOutputOption(*command, o.get());
  command->add_option("--after", o->after, "only events with a higher number")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 53));
  command->callback([o] { Events(*o); });
}

}  // namespace sluice::cli
