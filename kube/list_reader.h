// Reads a list of the API server while its bytes arrive. It holds the text of one object at a time, so that a list of
// any length needs the memory of its largest object. Not thread-safe.
#ifndef SLUICE_KUBE_LIST_READER_H_
#define SLUICE_KUBE_LIST_READER_H_

#include <absl/status/status.h>

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sluice::kube {

using Json = nlohmann::json;

class ListReader {
 public:
  // Calls `item` with each object of `items`, in their order.
  explicit ListReader(std::function<void(const Json& object)> item) : item_(std::move(item)) {}

  // The next bytes of the answer, split anywhere. Fails, and stays failed, if they are no list: kUnavailable.
  absl::Status Read(std::string_view bytes);
  // After the last byte. Fails if the list is not complete.
  absl::Status Finish();

  // Of the list's metadata; empty if absent. Set after Finish.
  const std::string& resource_version() const { return resource_version_; }
  const std::string& continue_token() const { return continue_token_; }

 private:
  enum class Expect {
    kList,
    kFirstMember,
    kMember,
    kColon,
    kValue,
    kNextMember,
    kFirstItem,
    kItem,
    kNextItem,
    kNothing
  };

  absl::Status Structure(std::string_view bytes, size_t& at);
  // Consumes bytes of a value. True once it is complete.
  bool Scan(std::string_view bytes, size_t& at);
  void BeginValue(Expect then, bool keep);
  absl::Status EndValue();
  absl::Status Malformed(const std::string& what);

  const std::function<void(const Json& object)> item_;
  absl::Status status_;
  Expect expect_ = Expect::kList;

  // The value that is being scanned: a member's name, a member's value or an item.
  bool in_value_ = false, keep_ = false;
  Expect then_ = Expect::kNothing;  // after it
  std::string text_;
  int depth_ = 0;
  bool in_string_ = false, is_escaped_ = false, is_scalar_ = false;

  std::string member_, resource_version_, continue_token_;
  size_t items_ = 0;
};

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_LIST_READER_H_
