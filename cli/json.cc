#include "cli/json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/reflection.h>

#include <nlohmann/json.hpp>

namespace sluice::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

Json Object(const Message& m);

// One value: the `i`-th of a repeated field, else the only one.
Json Value(const Message& m, const FieldDescriptor* f, int i) {
  const Reflection* r = m.GetReflection();
  const bool many = f->is_repeated();
  switch (f->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Object(many ? r->GetRepeatedMessage(m, f, i) : r->GetMessage(m, f));
    case FieldDescriptor::CPPTYPE_STRING:
      return many ? r->GetRepeatedString(m, f, i) : r->GetString(m, f);
    case FieldDescriptor::CPPTYPE_BOOL:
      return many ? r->GetRepeatedBool(m, f, i) : r->GetBool(m, f);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return many ? r->GetRepeatedDouble(m, f, i) : r->GetDouble(m, f);
    case FieldDescriptor::CPPTYPE_INT64:
      return many ? r->GetRepeatedInt64(m, f, i) : r->GetInt64(m, f);
    case FieldDescriptor::CPPTYPE_UINT64:
      return many ? r->GetRepeatedUInt64(m, f, i) : r->GetUInt64(m, f);
    case FieldDescriptor::CPPTYPE_UINT32:
      return many ? r->GetRepeatedUInt32(m, f, i) : r->GetUInt32(m, f);
    case FieldDescriptor::CPPTYPE_INT32:
      return many ? r->GetRepeatedInt32(m, f, i) : r->GetInt32(m, f);
    default:
      return nullptr;  // the service has no other types
  }
}

Json Object(const Message& m) {
  Json out = Json::object();
  const auto* descriptor = m.GetDescriptor();
  const Reflection* r = m.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* f = descriptor->field(i);
    if (f->is_map()) {
      Json map = Json::object();
      for (int n = 0; n < r->FieldSize(m, f); ++n) {
        const Message& entry = r->GetRepeatedMessage(m, f, n);
        map[Value(entry, entry.GetDescriptor()->field(0), 0).get<std::string>()] =
            Value(entry, entry.GetDescriptor()->field(1), 0);
      }
      out[f->name()] = std::move(map);
    } else if (f->is_repeated()) {
      Json list = Json::array();
      for (int n = 0; n < r->FieldSize(m, f); ++n) list.push_back(Value(m, f, n));
      out[f->name()] = std::move(list);
    } else {
      out[f->name()] = Value(m, f, 0);
    }
  }
  return out;
}

}  // namespace

std::string ToJson(const Message& message) {
  return Object(message).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::cli
