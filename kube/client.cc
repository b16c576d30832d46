#include "kube/client.h"

#include <algorithm>
#include <thread>

#include "common/mutex.h"
#include "kube/http.h"
#include "kube/list_reader.h"

namespace sluice::kube {
namespace {

// Bytes that are not UTF-8 become U+FFFD: nothing that a stranger wrote may end the program by an exception.
std::string Written(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Receives the body of a successful answer in parts. False: it is of no use, do not go on.
using BodyReader = std::function<bool(std::string_view bytes)>;

struct Call {
  const char* method;
  std::string path;
  std::string body = {};
  const char* type = "application/json";
  bool metadata_only = false;
  bool list = false;
  std::function<BodyReader()> reader = {};  // makes one for each attempt of a GET; empty: the body is returned
};

constexpr size_t kMaxErrorBody = 65536;

// `whole`: in one page, of the newest state.
std::string PageQuery(const ListOptions& options, const std::string& next, bool whole) {
  std::string query;
  const auto add = [&query](const char* name, const std::string& value) {
    if (!value.empty()) query += (query.empty() ? "?" : "&") + std::string(name) + "=" + EscapeQuery(value);
  };
  if (!whole && options.page > 0) add("limit", std::to_string(options.page));
  add("labelSelector", options.label_selector);
  add("fieldSelector", options.field_selector);
  add("continue", next);
  if (!whole && next.empty() && !options.not_older_than.empty()) {
    add("resourceVersion", options.not_older_than);
    add("resourceVersionMatch", "NotOlderThan");
  }
  return query;
}

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
    Backoff backoff;
    const bool repeatable = std::string_view(call.method) == "GET";
    absl::Status last;
    for (int attempt = 0; attempt < options_.attempts; ++attempt) {
      const httplib::Result result = Send(call);
      if (!result) {
        last = ToStatus(result.error(), server_);
        // Not repeatable: the server may have carried it out.
        if (!repeatable || !options_.retries_unavailable) return last;
        if (attempt + 1 < options_.attempts) options_.sleep(backoff.Next());
        continue;
      }
      last = ToStatus(result->status, result->body);
      if (last.ok()) return result->body;
      const bool again =
          absl::IsResourceExhausted(last) || (repeatable && options_.retries_unavailable && absl::IsUnavailable(last));
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
    if (method == "GET" && call.reader) return SendReading(call, headers);
    if (method == "GET") return client_->Get(call.path, headers);
    if (method == "POST") return client_->Post(call.path, headers, call.body, call.type);
    if (method == "PUT") return client_->Put(call.path, headers, call.body, call.type);
    if (method == "PATCH") return client_->Patch(call.path, headers, call.body, call.type);
    return client_->Delete(call.path, headers, call.body, call.type);
  }

  // Only the body of an error stays in the result.
  httplib::Result SendReading(const Call& call, const httplib::Headers& headers) SLUICE_REQUIRES(mutex_) {
    const BodyReader reader = call.reader();
    int http = 0;
    std::string error;
    httplib::Result result = client_->Get(
        call.path, headers,
        [&](const httplib::Response& response) {
          http = response.status;
          return true;
        },
        [&](const char* data, size_t size) {
          if (http == 200) return reader({data, size});
          if (error.size() < kMaxErrorBody) error.append(data, size);
          return true;
        });
    if (result) result->body = std::move(error);
    return result;
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

absl::StatusOr<std::string> Client::GetText(const std::string& path) { return impl_->Do({"GET", path}); }

absl::StatusOr<List> Client::GetList(const std::string& path, const ListOptions& options) {
  List list;
  auto version = ReadList(
      path, options, {[&list] { list.items.clear(); }, [&list](const Json& object) { list.items.push_back(object); }});
  if (!version.ok()) return version.status();
  list.resource_version = *std::move(version);
  return list;
}

absl::StatusOr<std::string> Client::ReadList(const std::string& path, const ListOptions& options,
                                             const ListSink& sink) {
  std::string next;
  bool whole = false;
  for (;;) {
    // A broken page is asked for again. Its token stands for the same objects, and those that were handed over are
    // skipped; the first page has no token and may be another then.
    const bool first = next.empty();
    size_t handed_over = 0, seen = 0;
    std::unique_ptr<ListReader> reader;
    absl::Status malformed;
    Call call{"GET", path + PageQuery(options, next, whole)};
    call.metadata_only = options.metadata_only;
    call.list = true;
    call.reader = [&]() -> BodyReader {
      if (first) {
        handed_over = 0;
        sink.begin();
      }
      seen = 0;
      malformed = absl::OkStatus();
      reader = std::make_unique<ListReader>([&](const Json& object) {
        if (++seen <= handed_over) return;
        handed_over = seen;
        sink.item(object);
      });
      return [&](std::string_view bytes) {
        malformed = reader->Read(bytes);
        return malformed.ok();
      };
    };
    absl::Status status = impl_->Do(call).status();
    if (absl::IsOutOfRange(status) && !first) {
      next.clear();
      whole = true;
      continue;
    }
    if (!malformed.ok()) return absl::UnavailableError(path + ": " + std::string(malformed.message()));
    if (!status.ok()) return status;
    if (const absl::Status end = reader->Finish(); !end.ok())
      return absl::UnavailableError(path + ": " + std::string(end.message()));
    next = reader->continue_token();
    if (next.empty()) return reader->resource_version();
  }
}

absl::StatusOr<Json> Client::Create(const std::string& path, const Json& object) {
  return impl_->DoJson({"POST", path, Written(object)});
}

absl::StatusOr<Json> Client::Update(const std::string& path, const Json& object) {
  return impl_->DoJson({"PUT", path, Written(object)});
}

absl::StatusOr<Json> Client::Patch(const std::string& path, const Json& patch, PatchType type,
                                   const std::string& field_manager) {
  const std::string query =
      "?fieldManager=" + EscapeQuery(field_manager) + (type == PatchType::kApply ? "&force=true" : "");
  return impl_->DoJson({"PATCH", path + query, Written(patch), MediaType(type)});
}

absl::Status Client::Delete(const std::string& path) { return impl_->Do({"DELETE", path}).status(); }

absl::Status Client::Delete(const std::string& path, const Json& options) {
  return impl_->Do({"DELETE", path, Written(options)}).status();
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
