#include "kube/watcher.h"

#include <atomic>
#include <thread>

#include "common/mutex.h"
#include "kube/http.h"

namespace sluice::kube {
namespace {

// The API server ends a watch after timeoutSeconds and sends a bookmark about every minute. A longer silence means a
// broken connection.
constexpr int kWatchSeconds = 290;
constexpr std::chrono::milliseconds kMaxSilence{100000};
constexpr size_t kMaxLine = 16 << 20;

}  // namespace

class Watcher::Impl {
 public:
  Impl(ClientConfig config, std::string path, ListOptions options, WatchHandler handler, std::string agent)
      : server_(config.server),
        connector_(config, agent),
        path_(std::move(path)),
        options_(std::move(options)),
        handler_(std::move(handler)) {
    ClientOptions client;
    client.user_agent = std::move(agent);
    client.sleep = [this](std::chrono::milliseconds time) { Sleep(time); };
    client_ = std::make_unique<Client>(std::move(config), std::move(client));
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
      if (stream_ != nullptr) stream_->stop();
    }
    wake_.NotifyAll();
    thread_.join();
  }

 private:
  void Run() {
    std::string version;  // empty: a list is due
    while (!stop_) {
      const bool listing = version.empty();
      const auto start = std::chrono::steady_clock::now();
      const absl::Status status = listing ? ListAll(version) : WatchFrom(version);
      if (stop_) return;
      if (absl::IsOutOfRange(status)) {
        if (!listing && !options_.not_older_than.empty()) options_.not_older_than = version;
        version.clear();
      } else if (!status.ok()) {
        NotifyState(false, std::string(status.message()));
      }
      // The API server may not have this version, for example after etcd was restored from a backup.
      if (listing && !status.ok() && options_.not_older_than != "0") options_.not_older_than.clear();
      // Back off from watches that end at once, or requests would follow each other without a pause.
      const bool lasted = listing || std::chrono::steady_clock::now() - start > std::chrono::seconds(1);
      if (!status.ok() || !lasted) Sleep(backoff_.Next());
    }
  }

  absl::Status ListAll(std::string& version) {
    auto listed = client_->ReadList(path_, options_, {handler_.begin, [this](const Json& object) {
                                                        if (!stop_) handler_.item(object);
                                                      }});
    if (!listed.ok()) return listed.status();
    if (listed->empty()) return absl::UnavailableError(server_ + path_ + ": the list has no resourceVersion");
    version = *std::move(listed);
    if (!stop_) handler_.end();
    return absl::OkStatus();
  }

  std::string Query(const std::string& version) const {
    std::string q = "?watch=true&allowWatchBookmarks=true&timeoutSeconds=" + std::to_string(kWatchSeconds) +
                    "&resourceVersion=" + EscapeQuery(version);
    if (!options_.label_selector.empty()) q += "&labelSelector=" + EscapeQuery(options_.label_selector);
    if (!options_.field_selector.empty()) q += "&fieldSelector=" + EscapeQuery(options_.field_selector);
    return q;
  }

  // Follows the watch to its end. OK: it ended regularly; continue from `version`.
  absl::Status WatchFrom(std::string& version) {
    HttpClient* stream = nullptr;  // only this thread replaces or frees stream_
    {
      const MutexLock lock(mutex_);
      if (stop_) return absl::OkStatus();
      stream_ = connector_.Make(kMaxSilence);
      stream_->set_connection_timeout(std::chrono::seconds(10));
      stream = stream_.get();
    }
    int http = 0;
    std::string rest;
    absl::Status status;
    const httplib::Result result = stream->Get(
        path_ + Query(version), connector_.Headers(options_.metadata_only, false),
        [&](const httplib::Response& response) {
          http = response.status;
          if (http == 200) NotifyState(true, {});
          return !stop_;
        },
        [&](const char* data, size_t size) {
          rest.append(data, size);
          if (http != 200) return rest.size() < 65536 && !stop_;
          status = HandleLines(rest, version);
          if (rest.size() > kMaxLine) status = absl::UnavailableError("an event is longer than 16 MiB");
          return status.ok() && !stop_;
        });
    {
      const MutexLock lock(mutex_);
      stream_.reset();
    }
    if (!status.ok()) return status;
    if (http != 0 && http != 200) return ToStatus(http, rest);
    if (!result && !stop_) {
      // A stream breaks when an API server restarts; `version` is still valid.
      return ToStatus(result.error(), server_);
    }
    return absl::OkStatus();
  }

  absl::Status HandleLines(std::string& text, std::string& version) {
    size_t begin = 0;
    absl::Status status;
    for (size_t end = 0; status.ok() && (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (end > begin) status = HandleEvent(std::string_view(text).substr(begin, end - begin), version);
    }
    text.erase(0, begin);
    return status;
  }

  absl::Status HandleEvent(std::string_view line, std::string& version) {
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("type") || !event.contains("object") || !event["type"].is_string() ||
        !event["object"].is_object()) {
      return absl::UnavailableError("an event of the watch is malformed");
    }
    const Json& object = event["object"];
    const auto& type = event["type"].get_ref<const std::string&>();
    if (type == "ERROR") {
      const auto code = object.find("code");
      return ToStatus(code != object.end() && code->is_number_integer() ? code->get<int>() : 500, object.dump());
    }
    const Json::json_pointer pointer("/metadata/resourceVersion");
    if (object.contains(pointer) && object[pointer].is_string()) version = object[pointer];
    backoff_.Reset();
    if (type == "ADDED") handler_.changed(Change::kAdded, object);
    if (type == "MODIFIED") handler_.changed(Change::kModified, object);
    if (type == "DELETED") handler_.changed(Change::kDeleted, object);
    return absl::OkStatus();
  }

  void NotifyState(bool up, const std::string& why) const {
    if (handler_.state) handler_.state(up, why);
  }

  void Sleep(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    const MutexLock lock(mutex_);
    while (!stop_ && std::chrono::steady_clock::now() < end) wake_.WaitUntil(mutex_, end);
  }

  const std::string server_;
  const Connector connector_;
  const std::string path_;
  ListOptions options_;  // only the thread uses it
  const WatchHandler handler_;
  Backoff backoff_;
  std::unique_ptr<Client> client_;
  Mutex mutex_;
  Condition wake_;
  std::unique_ptr<HttpClient> stream_ SLUICE_GUARDED_BY(mutex_);  // the destructor stops it
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

Watcher::Watcher(ClientConfig config, std::string path, ListOptions options, WatchHandler handler,
                 std::string user_agent)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(path), std::move(options), std::move(handler),
                                   std::move(user_agent))) {}
Watcher::~Watcher() = default;

}  // namespace sluice::kube
