#include "common/settings/settings.h"

#include <catch2/catch_test_macros.hpp>

namespace s = sluice::settings;

TEST_CASE("a fraction has steps of 0.01 up to one GPU, then whole GPUs") {
  CHECK(s::ParseFraction("0.5") == 50u);
  CHECK(s::ParseFraction("0.50") == 50u);
  CHECK(s::ParseFraction(".01") == 1u);
  CHECK(s::ParseFraction("1") == 100u);
  CHECK(s::ParseFraction("1.00") == 100u);
  CHECK(s::ParseFraction("16") == 1600u);
  for (const char* bad : {"",      "0",
                          "0.0",   "0.005",
                          "0.123", "1.5",
                          "1.01",  "17",
                          "-0.5",  "+0.5",
                          "0.5 ",  " 0.5",
                          "50%",   "5e-1",
                          "nan",   "inf",
                          "0,5",   "0..5",
                          "1.2.3", ".",
                          "0x1",   "99999999999999999999999999999999999"}) {
    INFO(bad);
    CHECK_FALSE(s::ParseFraction(bad));
  }
}

TEST_CASE("a quantity is a positive Kubernetes quantity, rounded up to bytes") {
  CHECK(s::ParseQuantity("1") == 1u);
  CHECK(s::ParseQuantity("4Gi") == 4ull << 30);
  CHECK(s::ParseQuantity("1.5Gi") == 3ull << 29);
  CHECK(s::ParseQuantity("512M") == 512000000u);
  CHECK(s::ParseQuantity("2e9") == 2000000000u);
  CHECK(s::ParseQuantity("2E9") == 2000000000u);
  CHECK(s::ParseQuantity("1E") == 1000000000000000000u);
  CHECK(s::ParseQuantity("128974848000m") == 128974848u);
  CHECK(s::ParseQuantity("1500m") == 2u);
  CHECK(s::ParseQuantity("0.1") == 1u);
  CHECK(s::ParseQuantity("7Ei") == 7ull << 60);
  for (const char* bad : {"", "0", "0Gi", "-1", "4gi", "4GiB", "4 Gi", "Gi", "8Ei", "9999P", "1e30", "1e99", "1e", "e9",
                          "1e+-3", "1ee3", "0x10", "1,5Gi", "NaN"}) {
    INFO(bad);
    CHECK_FALSE(s::ParseQuantity(bad));
  }
}

TEST_CASE("a share keeps six digits") {
  CHECK(s::ParseShare("0.25") == 250000u);
  CHECK(s::ParseShare("0.000001") == 1u);
  CHECK(s::ParseShare("1") == 1000000u);
  for (const char* bad : {"0", "1.1", "0.0000001", "", "x", "-1", "2"}) {
    INFO(bad);
    CHECK_FALSE(s::ParseShare(bad));
  }
}

TEST_CASE("a duration has hours, minutes and seconds in this order") {
  for (const auto& [text, seconds] : {std::pair{"90s", 90u},
                                      {"10m", 600u},
                                      {"1h30m", 5400u},
                                      {"1h0m5s", 3605u},
                                      {"720h", 2592000u},
                                      {"off", 0u},
                                      {"0h1s", 1u}}) {
    CAPTURE(text);
    CHECK(s::ParseDuration(text) == seconds);
  }
  for (const char* text : {"", "10", "0s", "m", "10 m", "-1m", "1.5h", "500ms", "30m1h", "10m10m", "1d", "721h", "10mx",
                           "OFF", "99999999999s", "1h 30m"}) {
    CAPTURE(text);
    CHECK_FALSE(s::ParseDuration(text));
  }
  CHECK(s::FormatDuration(0) == "off");
  CHECK(s::FormatDuration(5400) == "1h30m");
  for (const uint32_t seconds : {1u, 60u, 3600u, 3605u, 86399u}) {
    CHECK(s::ParseDuration(s::FormatDuration(seconds)) == seconds);
  }
}

TEST_CASE("a refused value gives a sentence with field, value and accepted values") {
  s::Settings settings;
  CHECK(s::Set(settings, *s::Find("gpu-fraction"), "1.5", "sluice.dev/gpu-fraction") ==
        "sluice.dev/gpu-fraction: '1.5' is not accepted; accepted: 0.01 to 1 in steps of 0.01, or a whole number of "
        "GPUs up to 16");
  CHECK(settings == s::Settings{});
  CHECK(s::Set(settings, *s::Find("log-level"), "info\n", "SLUICE_LOG_LEVEL") ==
        "SLUICE_LOG_LEVEL: 'info?' is not accepted; accepted: ERROR, WARN, INFO, DEBUG");
  // A number of MiB without its suffix.
  for (const char* key : {"gpu-memory", "memory-limit"}) {
    CHECK(s::Set(settings, *s::Find(key), "10240", key) ==
          std::string(key) +
              ": '10240' is not accepted; accepted: a Kubernetes quantity of bytes from 1Mi on, as 4Gi "
              "or 512M");
    CHECK(s::Set(settings, *s::Find(key), "1Mi", key).empty());
  }
}

TEST_CASE("all errors of a map are listed, conflicts included") {
  const auto bad = s::ParseAll({{"gpu-fracton", "0.5"}, {"memory-factor", "0"}, {"prefetch", "on"}}, "sluice.dev/");
  REQUIRE(bad.errors.size() == 3);
  CHECK(bad.errors[0].starts_with("sluice.dev/gpu-fracton: this key is unknown; accepted: gpu-fraction, gpu-memory"));
  const auto both =
      s::ParseAll({{"gpu-fraction", "0.5"}, {"gpu-memory", "4Gi"}, {"memory-limit", "2Gi"}}, "sluice.dev/");
  REQUIRE(both.errors.size() == 2);
  CHECK(both.errors[1] == "sluice.dev/memory-limit: '2Gi' is not accepted; accepted: at least the budget, 4Gi");
  CHECK(s::ParseAll({{"compute-request", "0.5"}, {"compute-limit", "0.4"}}, "").errors.size() == 1);
  CHECK(s::ParseAll({{"gpu-fraction", "0.5"}, {"compute-limit", "0.4"}}, "").ok());
}

TEST_CASE("formatted settings parse to the same settings") {
  const std::map<std::string, std::string> text = {
      {"gpu-fraction", "0.07"}, {"memory-limit", "1536Mi"},      {"visible-memory", "limit"},
      {"memory-factor", "80"},  {"compute-request", "0.333333"}, {"compute-limit", "1"},
      {"prefetch", "launch"},   {"log-level", "DEBUG"},          {"inject", "false"}};
  const auto first = s::ParseAll(text, "");
  REQUIRE(first.ok());
  CHECK(s::Format(first.settings) == text);
  CHECK(s::FormatQuantity(1000) == "1000");
  CHECK(s::HumanBytes(6ull << 30) == "6.0 GiB");
  for (const auto& key : s::Table()) {
    CHECK(s::Find(key.name) == &key);
    CHECK(&s::Of(key.id) == &key);
  }
}

TEST_CASE("each row accepts its good example and refuses its bad one") {
  for (const s::Key& key : s::Table()) {
    INFO(key.name);
    s::Settings settings;
    CHECK(s::Set(settings, key, key.good, key.name).empty());
    const auto text = s::Format(settings);
    REQUIRE(text.size() == 1);
    CHECK(s::ParseAll(text, "").settings == settings);
    CHECK_FALSE(s::Set(settings, key, key.bad, key.name).empty());
  }
}

TEST_CASE("a layer overrides the values that it has, and one size replaces the other") {
  s::Settings below = s::ParseAll({{"gpu-fraction", "0.5"}, {"memory-factor", "80"}}, "").settings;
  s::Layer(below, s::ParseAll({{"gpu-memory", "4Gi"}, {"prefetch", "off"}, {"inject", "false"}}, "").settings);
  CHECK(s::Format(below) ==
        std::map<std::string, std::string>{{"gpu-memory", "4Gi"}, {"memory-factor", "80"}, {"prefetch", "off"}});
}

TEST_CASE("the budget frame carries given values, else defaults") {
  sluice_budget budget{};
  s::FillBudget({}, budget);
  CHECK(budget.memory_factor == 0);
  CHECK(budget.prefetch == SLUICE_PREFETCH_PREDICT);
  CHECK(budget.log_level == SLUICE_LOG_WARN);
  CHECK(budget.visible == SLUICE_VISIBLE_BUDGET);
  s::FillBudget(s::ParseAll({{"memory-factor", "80"}, {"prefetch", "off"}, {"log-level", "DEBUG"}}, "").settings,
                budget);
  CHECK(budget.memory_factor == 80);
  CHECK(budget.prefetch == SLUICE_PREFETCH_OFF);
  CHECK(budget.log_level == SLUICE_LOG_DEBUG);
}
