// Reservations: the agent's file joined with kubelet's checkpoint, first in memory, then with the built plugin.
#include "deviceplugin/decide/reservations.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/status/status.h"
#include "deviceplugin/host/files.h"
#include "test/deviceplugin/rig.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

Json Container(const std::string& name, int units, const std::string& kind = "regular") {
  return {{"name", name}, {"kind", kind}, {"units", units}};
}

// A pod of one container. An empty card: not placed by the extender.
Json Pod(const std::string& uid, int units, const std::string& card) {
  Json pod = {{"uid", uid}, {"containers", {Container("main", units)}}};
  if (!card.empty()) pod["placement"] = {{"main", {card}}};
  return pod;
}

std::string File(const std::vector<Json>& pods) { return Json{{"version", 1}, {"pods", pods}}.dump(); }

std::string CardOf(const UnitChoice& choice) {
  std::set<std::string> cards;
  for (const auto& id : choice.ids) cards.insert(ParseDeviceId(id)->uuid);
  return cards.size() == 1 ? *cards.begin() : "";
}

const auto kNoCheckpoint = []() -> Reservations::Checkpoint { return absl::NotFoundError("none"); };

TEST_CASE("reservations: the file is parsed, and malformed files are rejected") {
  const auto pods = ParseReservations(File({Pod("a", 50, "GPU-0"), Pod("b", 20, "")}));
  REQUIRE(pods.ok());
  CHECK(pods->at("a").placement.at("main") == std::vector<std::string>{"GPU-0"});
  CHECK(pods->at("a").containers.at(0).units == 50);
  CHECK(pods->at("b").placement.empty());
  // Unknown members and containers without units are ignored.
  CHECK(ParseReservations(
            R"({"version":1,"new":1,"pods":[{"uid":"a","x":2,"containers":[{"name":"c","kind":"init","units":0}]}]})")
            ->at("a")
            .containers.empty());
  for (const char* garbage :
       {"", "[]", "{}", R"({"version":2,"pods":[]})", R"({"version":1})", R"({"version":1,"pods":[{}]})",
        R"({"version":1,"pods":[{"uid":"a"}]})", R"({"version":1,"pods":[{"uid":"a","containers":[{"name":"c"}]}]})",
        R"({"version":1,"pods":[{"uid":"a","containers":[{"name":"c","kind":"init","units":-1}]}]})",
        R"({"version":1,"pods":[{"uid":"a","containers":[],"placement":[]}]})", R"({"version":1,"pods":[{"uid":"a)"}) {
    INFO(garbage);
    CHECK(absl::IsDataLoss(ParseReservations(garbage).status()));
  }
}

TEST_CASE("reservations: a request gets the card that is reserved for its size, others do not") {
  Reservations reservations;
  // 60 and 50 are free; 50, 30, 30 were bound and are requested as 30, 30, 50. Best fit would place a 30 on the card
  // with 50.
  CHECK(reservations
            .SetPods(*ParseReservations(File({Pod("p", 50, "GPU-1"), Pod("q", 30, "GPU-0"), Pod("r", 30, "GPU-0")})))
            .empty());
  std::set<std::string> free;
  for (const auto& id : Join({Ids("GPU-0", 0, 60), Ids("GPU-1", 0, 50)})) free.insert(id);
  const auto request = [&](int size) {
    const std::vector<std::string> available(free.begin(), free.end());
    const UnitChoice choice = reservations.Prefer({available, {}, size}, {});
    REQUIRE(choice.fits);
    CHECK(reservations.CheckAllocation(choice.ids, kNoCheckpoint).ok());
    for (const auto& id : choice.ids) free.erase(id);
    return CardOf(choice);
  };
  CHECK(request(30) == "GPU-0");
  // 20 units for a pod without a reservation would fit on either card, and break a reservation on both.
  const std::vector<std::string> available(free.begin(), free.end());
  const UnitChoice unreserved = reservations.Prefer({available, {}, 20}, {});
  CHECK_FALSE(unreserved.fits);
  CHECK_THAT(std::string(reservations.CheckAllocation(unreserved.ids, kNoCheckpoint).message()),
             ContainsSubstring("free and not reserved for a pod that the scheduler placed here"));
  CHECK(request(30) == "GPU-0");
  CHECK(request(50) == "GPU-1");
}

TEST_CASE("reservations: units that kubelet took without asking are refused if they break one") {
  Reservations reservations;
  reservations.SetPods(*ParseReservations(File({Pod("p", 50, "GPU-0"), Pod("old", 30, "")})));
  std::vector<CheckpointEntry> given = {{"old", "main", Ids("GPU-0", 0, 30), "", "", {}}};
  const auto checkpoint = [&]() -> Reservations::Checkpoint { return given; };
  // 70 are free, 50 reserved.
  CHECK(reservations.CheckAllocation(Ids("GPU-0", 30, 50), checkpoint).ok());
  CHECK_FALSE(reservations.CheckAllocation(Ids("GPU-0", 30, 51), checkpoint).ok());
  CHECK(reservations.CheckAllocation(Ids("GPU-1", 0, 100), checkpoint).ok());
  // A live container's units may pass to another container of its pod.
  CHECK(reservations.CheckAllocation(Ids("GPU-0", 0, 30), checkpoint).ok());
  // A plugin that restarted between GetPreferredAllocation and Allocate still recognizes the reserved pod's request.
  CHECK(reservations.CheckAllocation(Ids("GPU-0", 40, 90), checkpoint).ok());
  // The reservation is used now, so the remaining units are free for all.
  CHECK(reservations.CheckAllocation(Ids("GPU-0", 30, 40), checkpoint).ok());
}

TEST_CASE("reservations: used, ended and moved ones hold no units") {
  Reservations reservations;
  const auto all = Ids("GPU-0", 0, 100);
  const auto fits = [&](int size) { return reservations.Prefer({all, {}, size}, {}).fits; };
  reservations.SetPods(*ParseReservations(File({Pod("p", 60, "GPU-0")})));
  CHECK_FALSE(fits(50));
  SECTION("the pod is gone") { reservations.SetPods(*ParseReservations(File({}))); }
  SECTION("placed elsewhere") { reservations.SetPods(*ParseReservations(File({Pod("p", 60, "GPU-1")}))); }
  SECTION("admitted, by kubelet's checkpoint") {
    reservations.SetCheckpoint({{"p", "main", Ids("GPU-0", 0, 60), "", "", {}}});
  }
  CHECK(fits(50));
  CHECK(fits(40));
}

TEST_CASE("reservations: one that cannot be honoured is reported once") {
  Reservations reservations;
  const auto problems = reservations.SetPods(*ParseReservations(File({Pod("p", 200, "GPU-0")})));
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], ContainsSubstring("pod p: "));
  // Reported only once.
  CHECK(reservations.SetPods(*ParseReservations(File({Pod("p", 200, "GPU-0")}))).empty());
}

// The built plugin with the agent's file.
struct ReservationRig : Rig {
  ReservationRig() {
    plugin.WriteCards(PluginProcess::Cards(2));
    plugin.Configure("logLevel: DEBUG\nextender: true\nreservationFile: " + plugin.Path("run/reservations.json") +
                     "\n");
    kubelet.Start();
  }
  void StartOnTwoCards() { StartPlugin(200); }
  void Write(const std::vector<Json>& pods) {
    std::filesystem::create_directories(plugin.Path("run"));
    REQUIRE(WriteFileAtomically(plugin.Path("run/reservations.json"), File(pods), Durable::kNo).ok());
  }
  // Writes the file and, if the plugin runs, waits until it has read it.
  void WriteAndAwait(const std::vector<Json>& pods) {
    Write(pods);
    if (!plugin.Running()) return;
    std::string placed;
    for (const Json& pod : pods) {
      if (pod.contains("placement")) placed += (placed.empty() ? "" : " ") + pod["uid"].get<std::string>();
    }
    const bool taken = kubelet.Await([&] {
      const std::string log = plugin.Log();
      const size_t last = log.rfind(R"("msg":"reservations",)");
      return last != std::string::npos && log.find(R"("pods":")" + placed + "\"", last) != std::string::npos;
    });
    INFO(Log());
    REQUIRE(taken);
  }
  std::string Admit(const std::string& pod, int units) {
    const Admitted admitted = kubelet.Admit(pod, "main", units);
    return admitted.status.ok() ? ParseDeviceId(admitted.ids.at(0))->uuid : Text(admitted.status);
  }
};

TEST_CASE("reservations: honoured in any order of admission, also after a restart of the plugin") {
  ReservationRig rig;
  const std::vector<Json> before = {Pod("a", 40, "GPU-0"), Pod("b", 50, "GPU-1")};
  const std::vector<Json> bound = {before[0], before[1], Pod("p", 50, "GPU-1"), Pod("q", 30, "GPU-0"),
                                   Pod("r", 30, "GPU-0")};
  rig.WriteAndAwait(before);
  rig.StartOnTwoCards();
  CHECK(rig.Admit("a", 40) == "GPU-0");
  CHECK(rig.Admit("b", 50) == "GPU-1");
  rig.WriteAndAwait(bound);
  CHECK(rig.Admit("q", 30) == "GPU-0");
  rig.plugin.Kill();
  rig.StartOnTwoCards();
  CHECK(rig.Admit("r", 30) == "GPU-0");
  CHECK_THAT(rig.Admit("unreserved", 10), ContainsSubstring("not reserved for a pod"));
  CHECK(rig.Admit("p", 50) == "GPU-1");
}

TEST_CASE("reservations: a request waits for a late placement, but not forever") {
  ReservationRig rig;
  rig.WriteAndAwait({});
  rig.StartOnTwoCards();
  // Best fit would take GPU-0. If the machine was too busy for the 200 ms, the attempt shows nothing and is repeated.
  std::string card;
  for (int units = 50; units > 40 && card != "GPU-1"; --units) {
    rig.kubelet.Delete("late");
    rig.WriteAndAwait({});
    std::thread kubelet([&] { card = rig.Admit("late", units); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    rig.Write({Pod("late", units, "GPU-1")});
    kubelet.join();
  }
  CHECK(card == "GPU-1");
  CHECK(rig.Admit("never placed", 50) == "GPU-1");
  std::filesystem::remove(rig.plugin.Path("run/reservations.json"));
  CHECK(rig.Admit("agent away", 60) == "GPU-0");
}

TEST_CASE("grown shares: the built plugin withholds the units, with and without an extender, also without the agent") {
  ReservationRig rig;
  if (GENERATE(false, true)) rig.plugin.Configure("");  // no extender; the file is beside stateFile
  const auto grown = [](int units) {
    Json pod = Pod("grown", 50, "");
    pod["grown"] = {{"GPU-0", units}};
    return pod;
  };
  rig.Write({grown(0)});
  rig.StartOnTwoCards();
  REQUIRE(rig.Admit("grown", 50) == "GPU-0");
  rig.Write({grown(30)});
  REQUIRE(rig.kubelet.AwaitDevices(170, 30));
  // Units that a live pod has stay healthy.
  for (int unit = 0; unit < 50; ++unit)
    CHECK(rig.kubelet.devices().at(FormatDeviceId("GPU-0", unit)).health == "Healthy");
  CHECK(rig.Admit("small", 20) == "GPU-0");  // the units that the growth left
  CHECK(rig.Admit("next", 20) == "GPU-1");   // best fit alone would take GPU-0
  // Kubelet asks for devices that it chose before it learned of the growth.
  std::vector<std::string> ids;
  for (int unit = 70; unit < 80; ++unit) ids.push_back(FormatDeviceId("GPU-0", unit));
  CHECK_THAT(Text(rig.kubelet.AllocateIds(ids)), ContainsSubstring("30 free percent of GPU GPU-0 are granted"));
  // After a restart of the plugin the same devices are withheld; the agent is down all the time.
  rig.plugin.Kill();
  const int before = rig.kubelet.registrations();
  rig.plugin.Start();
  REQUIRE(rig.kubelet.Await([&] { return rig.kubelet.registrations() > before; }));
  REQUIRE(rig.kubelet.AwaitDevices(170, 30));
  rig.kubelet.Delete("grown");
  CHECK(rig.kubelet.AwaitDevices(200));
}

}  // namespace
}  // namespace sluice::deviceplugin
