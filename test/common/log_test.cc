// The log's two forms, on a pipe in place of stderr.
#include "common/log/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace sluice {
namespace {

std::vector<std::string> LinesOf(const std::function<void()>& work) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const int saved = dup(2);
  dup2(ends[1], 2);
  close(ends[1]);
  work();
  dup2(saved, 2);
  close(saved);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("JSON: one object a line with time, level, program, message and fields") {
  SetUpLog("sluice-test", LogFormat::kJson, LogLevel::kDebug);
  const auto lines = LinesOf([] {
    Log(LogLevel::kError, "a \"quoted\"\nline", {{"why", "\x01\xff{}"}});
    Log(LogLevel::kWarn, "w");
    Log(LogLevel::kInfo, "i");
    Log(LogLevel::kDebug, "{}");
  });
  REQUIRE(lines.size() == 4);
  const std::vector<std::string> levels = {"error", "warn", "info", "debug"};
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto line = nlohmann::json::parse(lines[i]);
    CHECK(line["level"] == levels[i]);
    CHECK(line["program"] == "sluice-test");
    CHECK(std::regex_match(line["time"].get<std::string>(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")));
  }
  CHECK(nlohmann::json::parse(lines[0])["msg"] == "a \"quoted\"\nline");
  CHECK(nlohmann::json::parse(lines[0])["why"] == "\x01\xEF\xBF\xBD{}");
  CHECK(nlohmann::json::parse(lines[3])["msg"] == "{}");
}

TEST_CASE("text: time, level, program, message and fields; no message adds a line of its own") {
  SetUpLog("sluice-test", LogFormat::kText, LogLevel::kInfo);
  const auto lines = LinesOf([] {
    Log(LogLevel::kWarn, "denied\nforged", {{"pod", "a/b"}, {"why", "two words"}});
    Log(LogLevel::kDebug, "hidden");
  });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].substr(24) == " warn sluice-test: denied?forged pod=a/b why=\"two words\"");
}

TEST_CASE("the level and the form may change while running") {
  SetUpLog("sluice-test", LogFormat::kText, LogLevel::kError);
  CHECK(LinesOf([] { Log(LogLevel::kWarn, "hidden"); }).empty());
  SetUpLog("sluice-test", LogFormat::kJson, LogLevel::kWarn);
  const auto lines = LinesOf([] { Log(LogLevel::kWarn, "shown"); });
  REQUIRE(lines.size() == 1);
  CHECK(nlohmann::json::parse(lines[0])["msg"] == "shown");
}

TEST_CASE("answers to a command line have no time, and are JSON where the log is") {
  SetUpLog("sluice-test", LogFormat::kText, LogLevel::kError);
  CHECK(LinesOf([] { LogAnswer(LogLevel::kInfo, "valid\nforged"); }) ==
        std::vector<std::string>{"sluice-test: valid?forged"});
  SetUpLog("sluice-test", LogFormat::kJson, LogLevel::kError);
  const auto lines = LinesOf([] { LogAnswer(LogLevel::kError, "cannot listen"); });
  REQUIRE(lines.size() == 1);
  CHECK(nlohmann::json::parse(lines[0])["msg"] == "cannot listen");
}

TEST_CASE("words of configurations") {
  CHECK(ParseLogLevel("WARN") == LogLevel::kWarn);
  CHECK(ParseLogLevel("warn") == LogLevel::kWarn);
  CHECK_FALSE(ParseLogLevel("loud"));
  CHECK_FALSE(ParseLogLevel(""));
  CHECK(ParseLogFormat("json") == LogFormat::kJson);
  CHECK_FALSE(ParseLogFormat("JSON"));
}

}  // namespace
}  // namespace sluice
