// park, wake.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "cli/agent_connection.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "cli/views.h"
#include "common/command_line.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string run_dir, id;
  double timeout_s = 30;
};

// The state of the allocation; a state of "gone" where it has ended.
v1::ParkStatus StateOf(v1::Agent::Stub& stub, const std::string& id) {
  grpc::ClientContext context;
  v1::Status status;
  const grpc::Status r = stub.GetStatus(&context, {}, &status);
  if (!r.ok()) FailCall(r);
  for (const v1::AllocationStatus& a : status.allocations()) {
    if (a.id() == id) return a.park();
  }
  v1::ParkStatus gone;
  gone.set_state("gone");
  return gone;
}

void Park(const Options& o) {
  constexpr std::chrono::milliseconds kPollPause{20};
  const auto stub = NeedAgent(o.run_dir);
  v1::ParkRequest request;
  request.set_id(Printable(o.id));
  grpc::ClientContext context;
  v1::ParkResponse response;
  const auto began = Clock::now();
  const grpc::Status r = stub->Park(&context, request, &response);
  if (!r.ok()) FailCall(r);
  const auto end = began + std::chrono::duration<double>(o.timeout_s);
  v1::ParkStatus now = StateOf(*stub, response.id());
  while (now.state() == "parking" && Clock::now() < end) {
    std::this_thread::sleep_for(kPollPause);
    now = StateOf(*stub, response.id());
  }
  if (now.state() == "parked") {
    std::printf("%s is parked: %s stay on the GPU\n", response.id().c_str(), StayingText(now).c_str());
  } else if (now.state() == "parking") {
    Fail(1, "park: " + response.id() + " is not parked yet: " +
                (now.waits().empty() ? "its memory is leaving the GPU" : now.waits()) + "; it goes on");
  } else if (now.state() == "gone") {
    Fail(1, "park: " + response.id() + " has ended");
  } else {
    Fail(1, "park: " + response.id() + " was woken again by " + now.woken_by() + ": it works");
  }
}

void Wake(const Options& o) {
  v1::WakeRequest request;
  request.set_id(Printable(o.id));
  grpc::ClientContext context;
  v1::WakeResponse response;
  const grpc::Status r = NeedAgent(o.run_dir)->Wake(&context, request, &response);
  if (!r.ok()) FailCall(r);
  std::printf("%s is woken\n", response.id().c_str());
}

CLI::App* Add(CLI::App& app, const char* name, const char* help, const std::shared_ptr<Options>& o) {
  CLI::App* command = app.add_subcommand(name, help);
  AddRunDirOption(*command, &o->run_dir);
  command
      ->add_option("ID", o->id,
                   "allocation id or a unique prefix of it, namespace/pod, namespace/pod/container, or a process id")
      ->required();
  return command;
}

}  // namespace

void AddParkCommand(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      Add(app, "park", "have an idle container leave the GPU until its next launch, and wait until it has", o);
  command->add_option("--timeout", o->timeout_s, "seconds to wait")->check(Between(0.0, 3600.0))->capture_default_str();
  command->callback([o] { Park(*o); });
}

void AddWakeCommand(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = Add(app, "wake", "bring a parked container back before its next launch", o);
  command->callback([o] { Wake(*o); });
}

}  // namespace sluice::cli
