// The reader of configuration files: kinds of values, and the sentences of its errors.
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "common/config/reader.h"

namespace sluice::config {
namespace {

enum class Fruit { kNone, kApple, kPear };

struct Values {
  std::string text = "default", name = "default", path, address, address_or_none, word;
  Fruit fruit = Fruit::kNone;
  bool flag = false;
  uint32_t number = 0;
  std::chrono::seconds time{0};
  uint64_t bytes = 1, bytes_or_zero = 1;
  LogFormat format = LogFormat::kText;
  LogLevel level = LogLevel::kInfo;
  std::vector<std::string> list = {"default"}, short_words;
  std::map<std::string, std::string, std::less<>> map;
  std::string inner;
};

Field TableOf(Values* v) {
  return Section({{"text", Text(&v->text)},
                  {"name", Name(&v->name)},
                  {"path", Path(&v->path)},
                  {"address", Address(&v->address)},
                  {"addressOrNone", AddressOrNone(&v->address_or_none)},
                  {"word", Word(&v->word, {"left", "right"})},
                  {"fruit", OneOf(&v->fruit, {{"apple", Fruit::kApple}, {"pear", Fruit::kPear}})},
                  {"flag", Bool(&v->flag)},
                  {"number", Number(&v->number, 5, 100)},
                  {"time", Number(&v->time, 0, 60, "seconds")},
                  {"bytes", Quantity(&v->bytes)},
                  {"bytesOrZero", QuantityOrZero(&v->bytes_or_zero)},
                  {"format", Format(&v->format)},
                  {"level", Level(&v->level)},
                  {"list", List(&v->list)},
                  {"shortWords",
                   List(&v->short_words, "a list of short words", [](const std::string& s) { return s.size() < 4; })},
                  {"map", Map(&v->map)},
                  {"section", Section({{"inner", Text(&v->inner)}})}});
}

// Empty: the text is accepted.
std::string Error(const std::string& text, Values* v) {
  std::string error;
  const bool accepted = Parse(text, "f", TableOf(v), &error);
  CHECK(accepted == error.empty());
  return error;
}

std::string Error(const std::string& text) {
  Values v;
  return Error(text, &v);
}

TEST_CASE("configuration: each kind of value is stored") {
  Values v;
  REQUIRE(Error("text: ''\nname: a\npath: /x\naddress: ':80'\naddressOrNone: ''\nword: left\nfruit: pear\nflag: true\n"
                "number: 5\ntime: 60\nbytes: 1Ki\nbytesOrZero: 0\nformat: json\nlevel: WARN\nlist: [a, 7]\n"
                "shortWords:\n- b\nmap: {k: v}\nsection: {inner: i}\n",
                &v)
              .empty());
  CHECK(v.text.empty());
  CHECK((v.name == "a" && v.path == "/x" && v.address == ":80" && v.word == "left" && v.inner == "i"));
  CHECK((v.fruit == Fruit::kPear && v.flag && v.number == 5 && v.time == std::chrono::minutes(1)));
  CHECK((v.bytes == 1024 && v.bytes_or_zero == 0));
  CHECK((v.format == LogFormat::kJson && v.level == LogLevel::kWarn));
  CHECK(v.list == std::vector<std::string>{"a", "7"});
  CHECK(v.short_words == std::vector<std::string>{"b"});
  CHECK(v.map.at("k") == "v");
}

TEST_CASE("configuration: an absent value keeps the default") {
  for (const char* text : {"", "# nothing\n", "---\n", "section:\n", "{}"}) {
    Values v;
    CHECK(Error(text, &v).empty());
    CHECK((v.text == "default" && v.list.size() == 1));
  }
  Values v;
  CHECK(Error("list:\n", &v).empty());
  CHECK(v.list.size() == 1);
  CHECK(Error("list: []\n", &v).empty());
  CHECK(v.list.empty());
}

TEST_CASE("configuration: an error says file, line, key, the value and the accepted ones") {
  CHECK(Error("name: a\nnumber: 4\n") == "f:2: number: '4' is not accepted; accepted: a whole number from 5 to 100");
  for (const char* number : {"101", "-6", "6.0", "0x10", "6 7", "99999999999999999999", "''"}) {
    CHECK(Error(std::string("number: ") + number).starts_with("f:1: number: '"));
  }
  CHECK(Error("time: 61") == "f:1: time: '61' is not accepted; accepted: a whole number of seconds from 0 to 60");
  CHECK(Error("fruit: fig") == "f:1: fruit: 'fig' is not accepted; accepted: apple, pear");
  CHECK(Error("word: up") == "f:1: word: 'up' is not accepted; accepted: left, right");
  CHECK(Error("flag: perhaps") == "f:1: flag: 'perhaps' is not accepted; accepted: true, false");
  CHECK(Error("path: x") == "f:1: path: 'x' is not accepted; accepted: an absolute path");
  CHECK(Error("name: ''") == "f:1: name: '' is not accepted; accepted: a text that is not empty");
  CHECK(Error("address: ''").starts_with("f:1: address: '' is not accepted; accepted: ADDRESS:PORT, "));
  CHECK(Error("addressOrNone: x").ends_with("or an empty text for none"));
  CHECK(Error("bytes: 0") == "f:1: bytes: '0' is not accepted; accepted: a Kubernetes quantity of bytes, as 512Mi");
  CHECK(Error("bytesOrZero: much").ends_with("as 512Mi, or 0"));
  CHECK(Error("level: loud") == "f:1: level: 'loud' is not accepted; accepted: error, warn, info, debug");
  CHECK(Error("format: xml") == "f:1: format: 'xml' is not accepted; accepted: text, json");
  CHECK(Error("text: {a: b}") == "f:1: text: a map is not accepted; accepted: a text");
  CHECK(Error("text:") == "f:1: text: no value is not accepted; accepted: a text");
  CHECK(Error("list: a") == "f:1: list: 'a' is not accepted; accepted: a list of texts");
  CHECK(Error("shortWords:\n- a\n- longer\n") ==
        "f:3: shortWords[1]: 'longer' is not accepted; accepted: a list of short words");
  CHECK(Error("map: [a]") == "f:1: map: a list is not accepted; accepted: a map of keys and values");
  CHECK(Error("map: {a: [b]}") == "f:1: map.a: a list is not accepted; accepted: a text");
  CHECK(Error("- a") == "f:1: the file: a list is not accepted; accepted: a map of keys and values");
  CHECK(Error("word: " + std::string(100, 'x')).find(std::string(65, 'x')) == std::string::npos);
}

TEST_CASE("configuration: unknown keys, keys given twice and several documents are errors") {
  CHECK(Error("name: a\nnume: b\n").starts_with("f:2: nume: this key is unknown; accepted: address, addressOrNone, "));
  CHECK(Error("section:\n  outer: 1\n") == "f:2: section.outer: this key is unknown; accepted: inner");
  CHECK(Error("name: a\nname: b\n") == "f:2: name: given twice");
  CHECK(Error("section:\n  outer:\n    - 1\n") == "f:2: section.outer: this key is unknown; accepted: inner");
  for (const char* text : {"name: a\n---\nname: b\n", "---\n---\nnume: b\n", "--- {name: a}\n---\nname: b\n",
                           "name: a\n...\nnume: b\n", "name: a\n...\n---\n"}) {
    CHECK(Error(text) == "f: the file has several documents; accepted: one");
  }
  for (const char* text : {"# a comment\n---\nname: a--- b\n", "--- # a comment\nname: a\n...\n# the end\n",
                           "%YAML 1.2\n---\nname: a\n"}) {
    CHECK(Error(text).empty());
  }
}

TEST_CASE("configuration: a text that is no YAML is an error with its line") {
  CHECK(Error("name: a\ntext: [").starts_with("f:2: not YAML: "));
}

TEST_CASE("configuration: keys and values have to be UTF-8") {
  CHECK(Error("name: \xff\n") == "f:1: name: '\xff' is not accepted; accepted: a text that is not empty, in UTF-8");
  CHECK(Error("map: {\xff: a}\n") == "f:1: map.\xff: this key is not UTF-8");
}

TEST_CASE("configuration: fields of a daemon's own fail with the line of the value") {
  std::string error;
  const Field field = [](const Value& file) {
    file.Read({{"rows", [](const Value& rows) {
                  for (const Value& row : rows.Items("a list of rows")) {
                    std::string id;
                    row.Read({{"id", Text(&id)}});
                    if (id == "bad") row.Fail(row.key() + ": this row is bad");
                  }
                }}});
  };
  CHECK(Parse("rows: [{id: good}]", "f", field, &error));
  CHECK_FALSE(Parse("rows:\n- id: good\n- id: bad\n", "f", field, &error));
  CHECK(error == "f:3: rows[1]: this row is bad");
}

TEST_CASE("configuration: a file that cannot be read is an error with its name") {
  Values v;
  std::string error;
  CHECK_FALSE(Load("/nonexistent/file", TableOf(&v), &error));
  CHECK(error == "/nonexistent/file: No such file or directory");
  char path[] = "/tmp/config_reader_XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << "number: 7\n";
  CHECK(Load(path, TableOf(&v), &error));
  CHECK(v.number == 7);
  std::remove(path);
}

}  // namespace
}  // namespace sluice::config
