// A small Kubernetes API client: objects are JSON, paths are the API's own (/api/v1/nodes). Thread-safe; one request at
// a time on a connection.
//
// Status codes: kNotFound 404, kAborted 409 (someone else wrote first), kAlreadyExists 409 on create, kOutOfRange 410,
// kInvalidArgument 400 and 422, kUnauthenticated 401, kPermissionDenied 403, kResourceExhausted 429, kUnavailable for
// everything that may go away by itself (no connection, 5xx). The message is the API server's.
#ifndef SLUICE_KUBE_CLIENT_H_
#define SLUICE_KUBE_CLIENT_H_

#include <absl/status/statusor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kube/config.h"

namespace sluice::kube {

using Json = nlohmann::json;

enum class PatchType { kJson, kMerge, kStrategic, kApply };

struct ListOptions {
  std::string label_selector;
  std::string field_selector;
  bool metadata_only = false;  // PartialObjectMetadata: a node without its images is a tenth of a node
  size_t page = 500;
};

struct List {
  std::vector<Json> items;
  std::string resource_version;
};

struct ClientOptions {
  std::string user_agent = "sluice";
  std::chrono::milliseconds timeout{10000};
  int attempts = 4;  // of a request that may be repeated: GET always, anything after 429
  std::function<void(std::chrono::milliseconds)> sleep;  // tests; default: this thread sleeps
};

class Client {
 public:
  explicit Client(ClientConfig config, ClientOptions options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::StatusOr<Json> Get(const std::string& path);
  absl::StatusOr<List> GetList(const std::string& path, const ListOptions& options = {});  // all pages
  absl::StatusOr<Json> Create(const std::string& path, const Json& object);
  // PUT: the object's metadata.resourceVersion makes it fail with kAborted where it is not the newest.
  absl::StatusOr<Json> Update(const std::string& path, const Json& object);
  absl::StatusOr<Json> Patch(const std::string& path, const Json& patch, PatchType type,
                             const std::string& field_manager = "sluice");
  absl::Status Delete(const std::string& path);
  absl::Status Delete(const std::string& path,
                      const Json& options);  // DeleteOptions: kAborted where a precondition fails

  // Reads, changes and writes until nobody else wrote between (at most 8 times). `change` returns false where nothing
  // is to be written.
  absl::StatusOr<Json> Modify(const std::string& path, const std::function<bool(Json&)>& change);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// "Waits" grow from 0.5 s to 30 s with a third of chance in them, so that a cluster's daemons do not come back as one.
class Backoff {
 public:
  explicit Backoff(uint64_t seed) : state_(seed | 1) {}
  std::chrono::milliseconds Next();
  void Reset() { step_ = 0; }

 private:
  uint64_t state_;
  int step_ = 0;
};

std::string EscapeQuery(std::string_view text);

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_CLIENT_H_
