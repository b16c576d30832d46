// A small Kubernetes API client. Objects are JSON, paths are the API's own (/api/v1/nodes). Thread-safe; sends one
// request at a time over its connection.
//
// Status codes:
// kNotFound 404, kOutOfRange 410, kInvalidArgument 400 and 422, kUnauthenticated 401, kPermissionDenied 403,
// kResourceExhausted 429. kAborted 409 (the object was changed in between), or kAlreadyExists 409 on create.
// kUnavailable for failures that may pass: no connection, 5xx.
// The message is the API server's.
#ifndef SLUICE_KUBE_CLIENT_H_
#define SLUICE_KUBE_CLIENT_H_

#include <absl/status/statusor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/backoff.h"
#include "kube/config.h"

namespace sluice::kube {

using Json = nlohmann::json;

enum class PatchType { kJson, kMerge, kStrategic, kApply };

struct ListOptions {
  std::string label_selector;
  std::string field_selector;
  bool metadata_only = false;  // asks for PartialObjectMetadata; a node without its images is a tenth of its size
  size_t page = 500;
  // Empty: the newest state. Else the API server answers from its cache, with a state that is at least as new as this
  // resourceVersion; "0" takes any. A list by spec.nodeName costs it little then, and without it a read of all pods.
  std::string not_older_than;
};

struct List {
  std::vector<Json> items;
  std::string resource_version;
};

// Receives a list object by object, so that no process holds a whole list or page. Neither function may call the
// client.
struct ListSink {
  // The list begins. Called again if it must be read anew: objects seen before then may be gone.
  std::function<void()> begin;
  std::function<void(const Json& object)> item;
};

struct ClientOptions {
  std::string user_agent = "sluice";
  std::chrono::milliseconds timeout{10000};
  int attempts = 4;                 // for repeatable requests: GET always, every request after 429
  bool retries_unavailable = true;  // false: a GET is not repeated after 5xx or a broken connection, only after 429
  std::function<void(std::chrono::milliseconds)> sleep;  // for tests; by default the calling thread sleeps
};

class Client {
 public:
  explicit Client(ClientConfig config, ClientOptions options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::StatusOr<Json> Get(const std::string& path);
  absl::StatusOr<std::string> GetText(const std::string& path);                            // the answer as it is
  absl::StatusOr<List> GetList(const std::string& path, const ListOptions& options = {});  // reads all pages
  // The same with the memory of one object. Returns the list's resourceVersion. An expired page token (410) makes it
  // read the list anew, in one page that cannot expire.
  absl::StatusOr<std::string> ReadList(const std::string& path, const ListOptions& options, const ListSink& sink);
  absl::StatusOr<Json> Create(const std::string& path, const Json& object);
  // PUT. kAborted if the object's metadata.resourceVersion is not the newest.
  absl::StatusOr<Json> Update(const std::string& path, const Json& object);
  absl::StatusOr<Json> Patch(const std::string& path, const Json& patch, PatchType type,
                             const std::string& field_manager = "sluice");
  absl::Status Delete(const std::string& path);
  absl::Status Delete(const std::string& path,
                      const Json& options);  // DeleteOptions; kAborted if a precondition fails

  // Reads, changes and writes the object, again if it was changed in between (8 attempts). `change` returns false if
  // nothing needs to be written.
  absl::StatusOr<Json> Modify(const std::string& path, const std::function<bool(Json&)>& change);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The waits between calls of an API server that does not answer.
class Backoff : public RandomBackoff {
 public:
  Backoff() : RandomBackoff(std::chrono::milliseconds(500), std::chrono::seconds(30)) {}
};

std::string EscapeQuery(std::string_view text);

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_CLIENT_H_
