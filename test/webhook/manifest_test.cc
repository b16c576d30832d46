// YAML as kubectl reads it. The expected values come from `kubectl label --local -o json` (1.32).
#include "webhook/decision/manifest.h"

#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>
#include <utility>

namespace {

using Json = nlohmann::json;
using sluice::webhook::ReadManifests;
using sluice::webhook::WriteManifest;

Json Read(const std::string& text) {
  std::string error;
  const auto documents = ReadManifests(text, error);
  INFO(text << ": " << error);
  REQUIRE(documents);
  REQUIRE(documents->size() == 1);
  return documents->front();
}

std::string Error(const std::string& text) {
  std::string error;
  CHECK(!ReadManifests(text, error));
  return error;
}

}  // namespace

TEST_CASE("unquoted scalars have the values that kubectl gives them") {
  const std::pair<const char*, Json> cases[] = {{"0644", 420},
                                                {"0o644", 420},
                                                {"0755", 493},
                                                {"0400", 256},
                                                {"08", 8},
                                                {"0_7", 7},
                                                {"0x1F", 31},
                                                {"0b101", 5},
                                                {"-0644", -420},
                                                {"+12", 12},
                                                {"8_080", 8080},
                                                {"1_0.5", 10.5},
                                                {"1e3", 1000},
                                                {"1.5e+3", 1500},
                                                {"1.", 1},
                                                {".5", 0.5},
                                                {"-.5", -0.5},
                                                {"1.0", 1},
                                                {"0o9", "0o9"},
                                                {"1:30", "1:30"},
                                                {"190:20:30", "190:20:30"},
                                                {"2001-01-01", "2001-01-01"},
                                                {"y", true},
                                                {"N", false},
                                                {"yes", true},
                                                {"Off", false},
                                                {"~", nullptr},
                                                {"NULL", nullptr},
                                                {"nUll", "nUll"},
                                                {"0x", "0x"},
                                                {"1e400", "1e400"},
                                                {"_1", "_1"},
                                                {"1_", 1},
                                                {"-0", 0},
                                                {"0.1e1", 1},
                                                {"1e", "1e"},
                                                {"+", "+"},
                                                {".", "."},
                                                {"1.2.3", "1.2.3"},
                                                {"12345678901234567890", 12345678901234567890ULL},
                                                {"-9223372036854775808", INT64_MIN},
                                                {"\"0644\"", "0644"},
                                                {"'yes'", "yes"},
                                                {"!!str 0644", "0644"},
                                                {"!!int \"0644\"", 420},
                                                {"!!bool \"yes\"", true},
                                                {"|\n  0644\n", "0644\n"}};
  for (const auto& [text, wanted] : cases) {
    INFO(text);
    CHECK(Read(std::string("v: ") + text + "\n").at("v") == wanted);
  }
}

TEST_CASE("keys are strings, by the value of their scalar") {
  const Json wanted = {{"true", 1}, {"1", 2}, {"1.5", 3}, {"420", 4}, {"2001-01-01", 6}, {"0644", 7}};
  CHECK(Read("{on: 1, 1: 2, 1.5: 3, 0644: 4, 2001-01-01: 6, \"0644\": 7}") == wanted);
  CHECK(Error("~: 3\n") == "line 1: a key is null; accepted: a string");
  CHECK(Error("a: 1\nb: {yes: 1, on: 2}\n") == "line 2: the key 'true' occurs twice");
}

TEST_CASE("merge keys are merged where they stand") {
  const Json base = {{"a", "base"}, {"b", "base"}};
  const auto read = [](const std::string& map) {
    return Read("base: &base {a: base, b: base}\nv: " + map + "\n").at("v");
  };
  CHECK(read("{<<: *base}") == base);
  CHECK(read("{<<: *base, b: own}") == Json{{"a", "base"}, {"b", "own"}});
  CHECK(read("{b: own, <<: *base}") == base);  // go-yaml v2 differs from YAML's specification
  CHECK(read("{<<: [{b: first}, *base], c: 1}") == Json{{"a", "base"}, {"b", "first"}, {"c", 1}});
  CHECK(read("{<<: {<<: *base, a: middle}, c: 1}") == Json{{"a", "middle"}, {"b", "base"}, {"c", 1}});
  CHECK(read("{\"<<\": quoted}") == Json{{"<<", "quoted"}});
  CHECK(read("[\"<<\", <<]") == Json{"<<", "<<"});
  CHECK(Error("x: 1\nv: {<<: 1}\n") == "line 2: the value of '<<' is not a map; accepted: a map, or a list of maps");
  CHECK(Error("v: {<<: [a]}\n") == "line 1: the value of '<<' is not a map; accepted: a map, or a list of maps");
  CHECK(Error("v: {a: 1, a: 2}\n") == "line 1: the key 'a' occurs twice");
}

TEST_CASE("a manifest that was read is written so that it is read alike") {
  const Json value = {{"0644", "0644"}, {"on", "yes"},   {"1e3", 1000},  {"8_080", "8_080"},          {"<<", "merge"},
                      {"", ""},         {"a", {1, 2.5}}, {"~", nullptr}, {"list", {{{"0o7", "0o7"}}}}};
  CHECK(Read(WriteManifest(value)) == value);
}

TEST_CASE("aliases of aliases are bounded") {
  std::string text = "a0: &a0 {x: 1}\n";
  for (int i = 1; i < 40; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " {<<: " + before + ", y: [" + before + ", " +
            before + "]}\n";
  }
  CHECK(Error(text) == "the document is too large or too deep (aliases?)");
}
