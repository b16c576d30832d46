// Lists of kube/ against a fake API server: pages that break, tokens that expire, caches that lag behind.
#include <httplib.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "kube/client.h"
#include "kube/list_reader.h"
#include "kube/watcher.h"

namespace sluice::kube {
namespace {

using namespace std::chrono_literals;

struct ReadResult {
  absl::Status status;
  std::vector<std::string> names;
  std::string version, next;
};

// Reads the text in pieces of this size.
ReadResult ReadInPieces(std::string_view text, size_t piece) {
  ReadResult result;
  ListReader reader([&](const Json& object) { result.names.push_back(object.value("name", "")); });
  for (size_t at = 0; at < text.size() && result.status.ok(); at += piece)
    result.status = reader.Read(text.substr(at, piece));
  if (result.status.ok()) result.status = reader.Finish();
  result.version = reader.resource_version();
  result.next = reader.continue_token();
  return result;
}

// Answers GETs by a function, and records their paths with the query.
class FakeServer {
 public:
  using Answer = std::function<void(const httplib::Request& request, httplib::Response& response)>;

  explicit FakeServer(Answer answer, const std::string& socket = "") : answer_(std::move(answer)) {
    server_.Get(".*", [this](const httplib::Request& request, httplib::Response& response) {
      {
        const std::lock_guard lock(mutex_);
        targets_.push_back(request.target);
      }
      answer_(request, response);
    });
    if (socket.empty()) {
      config_.server = "http://127.0.0.1:" + std::to_string(server_.bind_to_any_port("127.0.0.1"));
    } else {
      server_.set_address_family(AF_UNIX);
      config_.server = "unix:" + socket;
      REQUIRE(server_.bind_to_port(socket.c_str(), 80));
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~FakeServer() {
    is_ending_ = true;
    server_.stop();
    thread_.join();
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  const ClientConfig& config() const { return config_; }
  bool is_ending() const { return is_ending_; }
  std::vector<std::string> targets() {
    const std::lock_guard lock(mutex_);
    return targets_;
  }

 private:
  const Answer answer_;
  httplib::Server server_;
  ClientConfig config_;
  std::thread thread_;
  std::atomic<bool> is_ending_ = false;
  std::mutex mutex_;
  std::vector<std::string> targets_;
};

std::string Page(const std::vector<std::string>& names, const std::string& next) {
  Json items = Json::array();
  for (const std::string& name : names) items.push_back({{"name", name}});
  return Json{{"items", items}, {"metadata", {{"resourceVersion", "7"}, {"continue", next}}}}.dump();
}

void Expire(httplib::Response& response) {
  response.status = 410;
  response.set_content(R"({"kind":"Status","code":410,"message":"the token has expired"})", "application/json");
}

ClientOptions WithoutSleep() {
  ClientOptions options;
  options.sleep = [](std::chrono::milliseconds) {};
  return options;
}

// Collects a list; `begins` counts how often it began.
struct Collector {
  int begins = 0;
  std::vector<std::string> names;
  ListSink Sink() {
    return {[this] {
              ++begins;
              names.clear();
            },
            [this](const Json& object) { names.push_back(object.value("name", "")); }};
  }
};

bool Wait(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

}  // namespace

TEST_CASE("a list is read from bytes that are split anywhere") {
  const std::string text = R"( {
    "kind": "NodeList", "items\u0000": [[]], "metadata": {"items": [1], "resourceVersion": "12", "continue": "a,\"}"},
    "items": [ {"name": "a", "spec": {"items": [{"}": "]"}]}}, {"name":"b\\"},{"name": "ü\"{[" , "n": -1.5e3} ],
    "more": true, "number": 12, "last": null })";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const ReadResult result = ReadInPieces(text, piece);
    INFO(piece << ": " << result.status.ToString());
    REQUIRE(result.status.ok());
    CHECK(result.names == std::vector<std::string>{"a", "b\\", "ü\"{["});
    CHECK(result.version == "12");
    CHECK(result.next == "a,\"}");
  }
  for (const char* const empty :
       {R"({"items":[],"metadata":{"resourceVersion":"3"}})", R"({"metadata":{"resourceVersion":"3"},"items":null})",
        R"({"metadata":{"resourceVersion":"3"}})", R"({"items":[  ],"metadata":{"resourceVersion":"3"}}  )"}) {
    const ReadResult result = ReadInPieces(empty, 1);
    INFO(empty);
    CHECK(result.status.ok());
    CHECK(result.names.empty());
    CHECK(result.version == "3");
  }
}

TEST_CASE("an answer that is no list is an error, wherever it stops being one") {
  const std::string good = R"({"metadata":{"resourceVersion":"3"},"items":[{"name":"a"},{"name":"b"}]})";
  for (size_t size = 0; size < good.size(); ++size) {
    INFO(size);
    CHECK(absl::IsUnavailable(ReadInPieces(good.substr(0, size), 7).status));
  }
  for (const char* const bad :
       {"[]", "<html>", "{]", R"({"items":[1]})", R"({"items":[{"a":1},]})", R"({"items":[{"a":1}{"b":2}]})",
        R"({"items":{}})", R"({"items":"x"})", R"({"items":[{"a":tru}]})", R"({"items":[]]})", R"({"items":[]}})",
        R"({"metadata":[]})", R"({"items",[]})", R"({items:[]})", R"({"items":[{"a":"\q"}]})", R"({"a":1,})"}) {
    for (const size_t piece : {size_t{1}, size_t{1000}}) {
      const ReadResult result = ReadInPieces(bad, piece);
      INFO(bad);
      CHECK(absl::IsUnavailable(result.status));
      CHECK(std::string(result.status.message()).starts_with("the answer is not a list: "));
    }
  }
}

TEST_CASE("an expired page token makes the list begin again, in one page") {
  FakeServer server([](const httplib::Request& request, httplib::Response& response) {
    if (request.has_param("continue")) return Expire(response);
    const bool paged = request.has_param("limit");
    response.set_content(paged ? Page({"gone", "a"}, "next") : Page({"a", "b", "c"}, ""), "application/json");
  });
  Client client(server.config(), WithoutSleep());
  Collector list;
  ListOptions options;
  options.page = 2;
  options.field_selector = "status.phase!=Failed";
  const auto version = client.ReadList("/api/v1/pods", options, list.Sink());
  REQUIRE(version.ok());
  CHECK(*version == "7");
  CHECK(list.begins == 2);
  CHECK(list.names == std::vector<std::string>{"a", "b", "c"});
  CHECK(server.targets() ==
        std::vector<std::string>{"/api/v1/pods?limit=2&fieldSelector=status.phase%21%3DFailed",
                                 "/api/v1/pods?limit=2&fieldSelector=status.phase%21%3DFailed&continue=next",
                                 "/api/v1/pods?fieldSelector=status.phase%21%3DFailed"});
}

TEST_CASE("a page that breaks off is asked for again, and no object arrives twice") {
  std::atomic<int> broken = 0;
  FakeServer server([&](const httplib::Request& request, httplib::Response& response) {
    const std::string page = request.has_param("continue") ? Page({"c", "d", "e"}, "") : Page({"a", "b"}, "next");
    if (!request.has_param("continue") || broken++ > 0) return response.set_content(page, "application/json");
    // The connection ends behind the second object.
    const size_t size = page.find(R"({"name":"e"})");
    response.set_content_provider(page.size(), "application/json",
                                  [page, size](size_t offset, size_t, httplib::DataSink& sink) {
                                    if (offset >= size) return false;
                                    return sink.write(page.data() + offset, size - offset);
                                  });
  });
  Client client(server.config(), WithoutSleep());
  Collector list;
  REQUIRE(client.ReadList("/api/v1/nodes", {}, list.Sink()).ok());
  CHECK(broken == 2);
  CHECK(list.begins == 1);
  CHECK(list.names == std::vector<std::string>{"a", "b", "c", "d", "e"});
}

TEST_CASE("a server on a Unix socket is asked as localhost") {
  const std::string socket = std::filesystem::temp_directory_path() / ("kube" + std::to_string(getpid()));
  std::mutex mutex;
  std::string host;
  FakeServer server(
      [&](const httplib::Request& request, httplib::Response& response) {
        const std::lock_guard lock(mutex);
        host = request.get_header_value("Host");
        response.set_content(Page({"a"}, ""), "application/json");
      },
      socket);
  Client client(server.config(), WithoutSleep());
  Collector list;
  CHECK(client.ReadList("/api/v1/nodes", {}, list.Sink()).ok());
  CHECK(list.names == std::vector<std::string>{"a"});
  const std::lock_guard lock(mutex);
  CHECK(host == "localhost");
  std::filesystem::remove(socket);
}

TEST_CASE("a watch of cached lists asks for no older state than it has seen, and for the newest if that fails") {
  std::atomic<int> lists = 0, watches = 0;
  FakeServer* running = nullptr;
  FakeServer server([&](const httplib::Request& request, httplib::Response& response) {
    if (request.has_param("watch")) {
      if (watches++ > 0) {  // the last one stays silent
        while (!running->is_ending()) std::this_thread::sleep_for(10ms);
        return;
      }
      response.set_content(R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}})"
                           "\n"
                           R"({"type":"ERROR","object":{"kind":"Status","code":410}})"
                           "\n",
                           "application/json");
      return;
    }
    if (lists++ == 1) return Expire(response);
    response.set_content(Page({"a"}, ""), "application/json");
  });
  running = &server;
  std::atomic<int> complete = 0;
  WatchHandler handler;
  handler.begin = [] {};
  handler.item = [](const Json&) {};
  handler.end = [&] { ++complete; };
  handler.changed = [](Change, const Json&) {};
  ListOptions options;
  options.field_selector = "spec.nodeName=n";
  options.not_older_than = "0";
  const Watcher watcher(server.config(), "/api/v1/pods", options, handler);
  REQUIRE(Wait([&] { return watches == 2; }));
  CHECK(complete == 2);
  const std::string list = "/api/v1/pods?limit=500&fieldSelector=spec.nodeName%3Dn";
  std::vector<std::string> asked;
  for (const std::string& target : server.targets()) {
    if (target.find("watch=true") == std::string::npos) asked.push_back(target);
  }
  CHECK(asked == std::vector<std::string>{list + "&resourceVersion=0&resourceVersionMatch=NotOlderThan",
                                          list + "&resourceVersion=9&resourceVersionMatch=NotOlderThan", list});
}

}  // namespace sluice::kube
