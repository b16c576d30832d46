#include "kube/list_reader.h"

#include <nlohmann/json.hpp>

namespace sluice::kube {
namespace {

// etcd refuses requests of more than 1.5 MiB by default. Some clusters raise that.
constexpr size_t kMaxObject = 16 << 20;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string Text(const Json& object, const char* member) {
  const auto it = object.find(member);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

}  // namespace

absl::Status ListReader::Malformed(const std::string& what) {
  status_ = absl::UnavailableError("the answer is not a list: " + what);
  return status_;
}

absl::Status ListReader::Read(std::string_view bytes) {
  for (size_t at = 0; status_.ok() && at < bytes.size();) {
    if (!in_value_) {
      status_ = Structure(bytes, at);
    } else if (Scan(bytes, at)) {
      status_ = EndValue();
    } else if (text_.size() > kMaxObject) {
      return Malformed("an object is longer than 16 MiB");
    }
  }
  return status_;
}

absl::Status ListReader::Finish() {
  if (status_.ok() && expect_ != Expect::kNothing) return Malformed("it ends early");
  return status_;
}

// Handles one character between values.
absl::Status ListReader::Structure(std::string_view bytes, size_t& at) {
  const char c = bytes[at];
  if (IsSpace(c)) {
    ++at;
    return absl::OkStatus();
  }
  const bool is_value = c != ',' && c != ':' && c != '}' && c != ']';
  const auto take = [&](Expect next) {
    expect_ = next;
    ++at;
    return absl::OkStatus();
  };
  switch (expect_) {
    case Expect::kList:
      if (c == '{') return take(Expect::kFirstMember);
      break;
    case Expect::kFirstMember:
    case Expect::kMember:
      if (c == '}' && expect_ == Expect::kFirstMember) return take(Expect::kNothing);
      if (c != '"') break;
      BeginValue(Expect::kColon, true);
      return absl::OkStatus();
    case Expect::kColon:
      if (c == ':') return take(Expect::kValue);
      break;
    case Expect::kValue:
      if (member_ == "items" && c == '[') return take(Expect::kFirstItem);
      if (!is_value) break;
      BeginValue(Expect::kNextMember, member_ == "metadata" || member_ == "items");
      return absl::OkStatus();
    case Expect::kNextMember:
      if (c == ',') return take(Expect::kMember);
      if (c == '}') return take(Expect::kNothing);
      break;
    case Expect::kFirstItem:
    case Expect::kItem:
      if (c == ']' && expect_ == Expect::kFirstItem) return take(Expect::kNextMember);
      if (!is_value) break;
      BeginValue(Expect::kNextItem, true);
      return absl::OkStatus();
    case Expect::kNextItem:
      if (c == ',') return take(Expect::kItem);
      if (c == ']') return take(Expect::kNextMember);
      break;
    case Expect::kNothing:
      break;
  }
  return Malformed(std::string("unexpected '") + c + "' after " + std::to_string(items_) + " objects");
}

void ListReader::BeginValue(Expect then, bool keep) {
  in_value_ = true;
  keep_ = keep;
  then_ = then;
  text_.clear();
  depth_ = 0;
  in_string_ = is_escaped_ = is_scalar_ = false;
}

bool ListReader::Scan(std::string_view bytes, size_t& at) {
  const size_t begin = at;
  bool is_complete = false;
  while (at < bytes.size() && !is_complete) {
    const char c = bytes[at];
    if (in_string_) {
      ++at;
      if (is_escaped_) {
        is_escaped_ = false;
      } else if (c == '\\') {
        is_escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        is_complete = depth_ == 0;
      }
      continue;
    }
    // A number or a word has no end of its own.
    if (is_scalar_ && (IsSpace(c) || c == ',' || c == '}' || c == ']')) {
      is_complete = true;
      break;
    }
    ++at;
    if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      is_complete = --depth_ == 0;
    } else if (depth_ == 0) {
      is_scalar_ = true;
    }
  }
  if (keep_) text_.append(bytes.substr(begin, at - begin));
  return is_complete;
}

absl::Status ListReader::EndValue() {
  in_value_ = false;
  expect_ = then_;
  if (!keep_) return absl::OkStatus();
  const Json value = Json::parse(text_, nullptr, /*allow_exceptions=*/false);
  if (then_ == Expect::kColon) {
    if (!value.is_string()) return Malformed("a member's name is no string");
    member_ = value.get<std::string>();
  } else if (then_ == Expect::kNextItem) {
    if (!value.is_object()) return Malformed("item " + std::to_string(items_) + " is no object");
    ++items_;
    item_(value);
  } else if (member_ == "metadata") {
    if (!value.is_object()) return Malformed("its metadata is no object");
    resource_version_ = Text(value, "resourceVersion");
    continue_token_ = Text(value, "continue");
  } else if (!value.is_null()) {  // encoding/json writes an empty list as null
    return Malformed("its items are no array");
  }
  return absl::OkStatus();
}

}  // namespace sluice::kube
