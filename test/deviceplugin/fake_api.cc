#include "test/deviceplugin/fake_api.h"

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

namespace sluice::deviceplugin {

using Json = nlohmann::json;

namespace {

constexpr char kSlices[] = "/apis/resource.k8s.io/v1/resourceslices";

void Answer(httplib::Response& response, int status, const Json& body) {
  response.status = status;
  response.set_content(body.dump(), "application/json");
}

void Fail(httplib::Response& response, int status, const std::string& message) {
  Answer(response, status, {{"kind", "Status"}, {"code", status}, {"message", message}});
}

}  // namespace

Json MakeClaim(const ClaimOrder& order) {
  Json results = Json::array();
  for (const std::string& device : order.devices) {
    Json result = {{"request", "gpu"}, {"driver", "sluice.dev"}, {"pool", "node-1"}, {"device", device}};
    if (!order.memory.empty()) {
      result["consumedCapacity"] = {{"memory", order.memory}, {"compute", order.compute.empty() ? "1" : order.compute}};
    }
    results.push_back(std::move(result));
  }
  return {{"metadata", {{"namespace", "team"}, {"name", order.name}, {"uid", order.uid}}},
          {"status",
           {{"allocation", {{"devices", {{"results", results}, {"config", order.config}}}}},
            {"reservedFor", Json::array({{{"resource", "pods"}, {"name", order.name + "-pod"}, {"uid", "u"}}})}}}};
}

struct FakeApi::State {
  struct Event {
    int version;
    std::string text;
  };
  httplib::Server server;
  int port = 0;
  std::thread thread;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Json> slices, claims;
  std::vector<Event> events;
  int version = 10, writes = 0;
  std::atomic<bool> down = false, drops = false, drops_taints = false, ending = false;

  // Drops the fields of gates that are off, and stamps taints.
  void Admit(Json& slice) const {
    for (Json& device : slice["spec"]["devices"]) {
      if (drops) {
        device.erase("allowMultipleAllocations");
        for (Json& capacity : device["capacity"]) capacity.erase("requestPolicy");
      }
      if (drops_taints) device.erase("taints");
      if (!device.contains("taints")) continue;
      for (Json& taint : device["taints"]) {
        if (!taint.contains("timeAdded")) taint["timeAdded"] = "2026-11-26T00:00:" + std::to_string(version % 60) + "Z";
      }
    }
  }

  // With the mutex held.
  void Store(Json slice, const char* type) {
    const std::string name = slice["metadata"]["name"];
    slice["metadata"]["resourceVersion"] = std::to_string(++version);
    Admit(slice);
    events.push_back({version, Json{{"type", type}, {"object", slice}}.dump() + "\n"});
    if (std::string_view(type) == "DELETED") {
      slices.erase(name);
    } else {
      slices[name] = std::move(slice);
    }
    changed.notify_all();
  }

  void List(httplib::Response& response) {
    const std::lock_guard lock(mutex);
    Json items = Json::array();
    for (const auto& [name, slice] : slices) items.push_back(slice);
    Answer(response, 200, {{"metadata", {{"resourceVersion", std::to_string(version)}}}, {"items", items}});
  }

  void Watch(const httplib::Request& request, httplib::Response& response) {
    auto from = std::make_shared<int>(std::stoi(request.get_param_value("resourceVersion")));
    response.set_chunked_content_provider("application/json", [this, from](size_t, httplib::DataSink& sink) {
      std::string text;
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::milliseconds(50));
        for (const Event& event : events) {
          if (event.version > *from) text += event.text;
        }
        *from = version;
      }
      if (ending || down) return false;
      return text.empty() || sink.write(text.data(), text.size());
    });
  }

  void Write(const httplib::Request& request, httplib::Response& response, bool is_new) {
    Json slice = Json::parse(request.body);
    const std::string name = slice["metadata"]["name"];
    const std::lock_guard lock(mutex);
    if (request.get_param_value("dryRun") == "All") {
      Admit(slice);
      return Answer(response, 201, slice);
    }
    if (is_new && slices.contains(name)) return Fail(response, 409, name + " already exists");
    if (!is_new && !slices.contains(name)) return Fail(response, 404, name + " not found");
    if (!is_new && slices[name]["metadata"]["resourceVersion"] != slice["metadata"]["resourceVersion"])
      return Fail(response, 409, "the object has been modified");
    ++writes;
    Store(slice, is_new ? "ADDED" : "MODIFIED");
    Answer(response, is_new ? 201 : 200, slices[name]);
  }
};

FakeApi::FakeApi() : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.server.new_task_queue = [] { return new httplib::ThreadPool(12); };
  s.server.set_tcp_nodelay(true);  // as Go does; else each answer waits for a delayed acknowledgement
  s.server.set_pre_routing_handler([&s](const httplib::Request&, httplib::Response& response) {
    if (!s.down) return httplib::Server::HandlerResponse::Unhandled;
    Fail(response, 503, "down");
    return httplib::Server::HandlerResponse::Handled;
  });
  s.server.Get(kSlices, [&s](const httplib::Request& request, httplib::Response& response) {
    if (request.get_param_value("fieldSelector") != "spec.driver=sluice.dev,spec.nodeName=node-1")
      return Fail(response, 400, "the test expects the driver's selector");
    request.has_param("watch") ? s.Watch(request, response) : s.List(response);
  });
  s.server.Post(kSlices, [&s](const httplib::Request& q, httplib::Response& r) { s.Write(q, r, true); });
  s.server.Put(std::string(kSlices) + "/.*",
               [&s](const httplib::Request& q, httplib::Response& r) { s.Write(q, r, false); });
  s.server.Delete(std::string(kSlices) + "/(.*)", [&s](const httplib::Request& request, httplib::Response& response) {
    const std::lock_guard lock(s.mutex);
    const auto it = s.slices.find(request.matches[1].str());
    if (it == s.slices.end()) return Fail(response, 404, "not found");
    ++s.writes;
    s.Store(Json(it->second), "DELETED");
    Answer(response, 200, Json::object());
  });
  s.server.Get("/api/v1/nodes/node-1", [](const httplib::Request&, httplib::Response& response) {
    Answer(response, 200, {{"metadata", {{"name", "node-1"}, {"uid", "node-uid"}}}});
  });
  s.server.Get("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/(.*)",
               [&s](const httplib::Request& request, httplib::Response& response) {
                 const std::lock_guard lock(s.mutex);
                 const auto it = s.claims.find(request.matches[1].str());
                 it == s.claims.end() ? Fail(response, 404, "not found") : Answer(response, 200, it->second);
               });
  s.port = s.server.bind_to_any_port("127.0.0.1");
  s.thread = std::thread([&s] { s.server.listen_after_bind(); });
  while (!s.server.is_running()) std::this_thread::yield();
}

FakeApi::~FakeApi() {
  state_->ending = true;
  state_->server.stop();
  state_->thread.join();
}

std::string FakeApi::url() const { return "http://127.0.0.1:" + std::to_string(state_->port); }

void FakeApi::WriteKubeconfig(const std::string& path) const {
  std::ofstream(path) << "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, "
                         "user: a}}]\nusers: [{name: a, user: {token: t}}]\nclusters: [{name: a, cluster: {server: '"
                      << url() << "'}}]\n";
}

void FakeApi::PutClaim(const Json& claim) {
  const std::lock_guard lock(state_->mutex);
  state_->claims[claim["metadata"]["name"]] = claim;
}

void FakeApi::DeleteClaim(const std::string& name) {
  const std::lock_guard lock(state_->mutex);
  state_->claims.erase(name);
}

void FakeApi::SetDown(bool down) { state_->down = down; }
void FakeApi::SetDropsSharing(bool drops) { state_->drops = drops; }
void FakeApi::SetDropsTaints(bool drops) { state_->drops_taints = drops; }

std::vector<Json> FakeApi::Slices() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<Json> out;
  for (const auto& [name, slice] : state_->slices) out.push_back(slice);
  return out;
}

void FakeApi::PutSlice(const Json& slice) {
  const std::lock_guard lock(state_->mutex);
  state_->Store(slice, "ADDED");
}

void FakeApi::DeleteSlice(const std::string& name) {
  const std::lock_guard lock(state_->mutex);
  if (const auto it = state_->slices.find(name); it != state_->slices.end()) state_->Store(Json(it->second), "DELETED");
}

int FakeApi::writes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->writes;
}

}  // namespace sluice::deviceplugin
