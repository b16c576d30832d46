#include "kube/client.h"

#include <algorithm>
#include <thread>

#include "common/mutex.h"
#include "kube/http.h"

namespace sluice::kube {
namespace {

struct Call {
  const char* method;
  std::string path;
  std::string body = {};
  const char* type = "application/json";
  bool metadata_only = false;
  bool list = false;
};

constexpr std::chrono::milliseconds kMaxRetryAfter{10000};

std::chrono::milliseconds RetryAfter(const httplib::Response& response, Backoff& backoff) {
  const std::string text = response.get_header_value("Retry-After");
  const long seconds = std::strtol(text.c_str(), nullptr, 10);
  if (seconds <= 0) return backoff.Next();
  return std::min(kMaxRetryAfter, std::chrono::milliseconds(seconds * 1000));
}

const char* MediaType(PatchType type) {
  switch (type) {
    case PatchType::kJson:
      return "application/json-patch+json";
    case PatchType::kMerge:
      return "application/merge-patch+json";
    case PatchType::kStrategic:
      return "application/strategic-merge-patch+json";
    case PatchType::kApply:
      return "application/apply-patch+yaml";
  }
  return "";
}

}  // namespace

class Client::Impl {
 public:
  Impl(ClientConfig config, ClientOptions options)
      : server_(config.server), connector_(std::move(config), options.user_agent), options_(std::move(options)) {
    if (!options_.sleep) options_.sleep = [](std::chrono::milliseconds time) { std::this_thread::sleep_for(time); };
  }

  absl::StatusOr<std::string> Do(const Call& call) {
    Backoff backoff(reinterpret_cast<uintptr_t>(this) ^
                    static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
    const bool repeatable = std::string_view(call.method) == "GET";
    absl::Status last;
    for (int attempt = 0; attempt < options_.attempts; ++attempt) {
      const httplib::Result result = Send(call);
      if (!result) {
        last = ToStatus(result.error(), server_);
        if (!repeatable) return last;  // the server may have carried it out
        if (attempt + 1 < options_.attempts) options_.sleep(backoff.Next());
        continue;
      }
      last = ToStatus(result->status, result->body);
      if (last.ok()) return result->body;
      const bool again = absl::IsResourceExhausted(last) || (repeatable && absl::IsUnavailable(last));
      if (!again) return last;
      if (attempt + 1 < options_.attempts) options_.sleep(RetryAfter(*result, backoff));
    }
    return last;
  }

  absl::StatusOr<Json> DoJson(const Call& call) {
    auto body = Do(call);
    if (!body.ok()) return body.status();
    Json json = Json::parse(*body, nullptr, false);
    if (json.is_discarded()) return absl::UnavailableError(server_ + call.path + ": the answer is not JSON");
    return json;
  }

 private:
  httplib::Result Send(const Call& call) {
    const MutexLock lock(mutex_);
    std::string fingerprint = connector_.Fingerprint();
    if (client_ == nullptr || fingerprint != fingerprint_) {
      client_ = connector_.Make(options_.timeout);
      fingerprint_ = std::move(fingerprint);
    }
    const httplib::Headers headers = connector_.Headers(call.metadata_only, call.list);
    const std::string_view method = call.method;
    if (method == "GET") return client_->Get(call.path, headers);
    if (method == "POST") return client_->Post(call.path, headers, call.body, call.type);
    if (method == "PUT") return client_->Put(call.path, headers, call.body, call.type);
    if (method == "PATCH") return client_->Patch(call.path, headers, call.body, call.type);
    return client_->Delete(call.path, headers, call.body, call.type);
  }

  const std::string server_;
  const Connector connector_;
  ClientOptions options_;
  Mutex mutex_;
  std::unique_ptr<HttpClient> client_ SLUICE_GUARDED_BY(mutex_);
  std::string fingerprint_ SLUICE_GUARDED_BY(mutex_);
};

Client::Client(ClientConfig config, ClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(options))) {}
Client::~Client() = default;

absl::StatusOr<Json> Client::Get(const std::string& path) { return impl_->DoJson({"GET", path}); }

absl::StatusOr<List> Client::GetList(const std::string& path, const ListOptions& options) {
  List list;
  std::string next;
  // An expired page token is answered with 410: restart the list, once.
  for (int restarts = 0;;) {
    std::string query = "?limit=" + std::to_string(options.page);
    if (!options.label_selector.empty()) query += "&labelSelector=" + EscapeQuery(options.label_selector);
    if (!options.field_selector.empty()) query += "&fieldSelector=" + EscapeQuery(options.field_selector);
    if (!next.empty()) query += "&continue=" + EscapeQuery(next);
    Call call{"GET", path + query};
    call.metadata_only = options.metadata_only;
    call.list = true;
    auto page = impl_->DoJson(call);
    if (absl::IsOutOfRange(page.status()) && !next.empty() && restarts++ == 0) {
      list.items.clear();
      next.clear();
      continue;
    }
    if (!page.ok()) return page.status();
    const Json metadata = page->value("metadata", Json::object());
    list.resource_version = metadata.value("resourceVersion", "");
    if (auto items = page->find("items"); items != page->end() && items->is_array()) {
      for (Json& item : *items) list.items.push_back(std::move(item));
    }
    next = metadata.value("continue", "");
    if (next.empty()) return list;
  }
}

absl::StatusOr<Json> Client::Create(const std::string& path, const Json& object) {
  return impl_->DoJson({"POST", path, object.dump()});
}

absl::StatusOr<Json> Client::Update(const std::string& path, const Json& object) {
  return impl_->DoJson({"PUT", path, object.dump()});
}

absl::StatusOr<Json> Client::Patch(const std::string& path, const Json& patch, PatchType type,
                                   const std::string& field_manager) {
  const std::string query =
      "?fieldManager=" + EscapeQuery(field_manager) + (type == PatchType::kApply ? "&force=true" : "");
  return impl_->DoJson({"PATCH", path + query, patch.dump(), MediaType(type)});
}

absl::Status Client::Delete(const std::string& path) { return impl_->Do({"DELETE", path}).status(); }

absl::Status Client::Delete(const std::string& path, const Json& options) {
  return impl_->Do({"DELETE", path, options.dump()}).status();
}

absl::StatusOr<Json> Client::Modify(const std::string& path, const std::function<bool(Json&)>& change) {
  absl::Status last;
  for (int i = 0; i < 8; ++i) {
    auto object = Get(path);
    if (!object.ok()) return object;
    if (!change(*object)) return object;
    auto written = Update(path, *object);
    if (!absl::IsAborted(written.status())) return written;
    last = written.status();
  }
  return last;
}

std::chrono::milliseconds Backoff::Next() {
  state_ ^= state_ << 13;  // xorshift64
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  const int64_t base = std::min<int64_t>(30000, int64_t{500} << std::min(step_, 10));
  ++step_;
  return std::chrono::milliseconds(base * 2 / 3 + static_cast<int64_t>(state_ % static_cast<uint64_t>(base / 3 + 1)));
}

std::string EscapeQuery(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '-' || c == '_' || c == '.' || c == '~') {
      out += c;
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

}  // namespace sluice::kube
