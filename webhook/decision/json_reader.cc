#include "webhook/decision/json_reader.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace sluice::webhook {
namespace {

using Json = nlohmann::json;

// The library's own builder keeps the last of two equal keys. A webhook that reads another value than the API server
// does is a security hole, so this builder refuses duplicates.
class Builder final : public Json::json_sax_t {
 public:
  explicit Builder(std::string& error) : error_(error) {}
  Json Take() { return std::move(root_); }

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& value) override {
    auto [it, fresh] = stack_.back()->emplace(std::move(value), nullptr);
    if (!fresh) {
      error_ = "the key '" + it.key().substr(0, 64) + "' occurs twice";
      return false;
    }
    slot_ = &*it;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& e) override {
    // The library's sentence begins with an id in brackets.
    const std::string_view what = e.what();
    const size_t end = what.find("] ");
    error_ = "not JSON at byte " + std::to_string(position) + ": " +
             std::string(end == std::string_view::npos ? what : what.substr(end + 2, 200));
    return false;
  }

 private:
  Json* Place(Json&& value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool Put(Json value) {
    if (!Count()) return false;
    Place(std::move(value));
    return true;
  }

  bool Count() {
    if (++values_ <= kMaxJsonValues) return true;
    error_ = "more than " + std::to_string(kMaxJsonValues) + " values";
    return false;
  }

  bool Open(Json value) {
    if (stack_.size() >= kMaxJsonDepth) {
      error_ = "nested deeper than " + std::to_string(kMaxJsonDepth);
      return false;
    }
    if (!Count()) return false;
    stack_.push_back(Place(std::move(value)));
    return true;
  }

  bool Close() {
    stack_.pop_back();
    return true;
  }

  std::string& error_;
  Json root_;
  std::vector<Json*> stack_;  // only the innermost value gets children, so the pointers stay valid
  Json* slot_ = nullptr;
  size_t values_ = 0;
};

}  // namespace

std::optional<Json> ReadJson(std::string_view text, std::string& error, Json* beginning) {
  Builder builder(error);
  if (!Json::sax_parse(text, &builder)) {
    if (error.empty()) error = "not JSON";
    if (beginning != nullptr) *beginning = builder.Take();
    return std::nullopt;
  }
  return builder.Take();
}

}  // namespace sluice::webhook
