#include "agent/status_json.h"

#include <google/protobuf/util/json_util.h>

#include <chrono>

#include "agent/status_proto.h"

namespace sluice::agent {

std::string StatusJson(const NodeStatus& status) {
  v1::Status message;
  ToProto(status, &message);
  message.set_unix_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  for (v1::AllocationStatus& a : *message.mutable_allocations()) {
    a.clear_settings();
    a.clear_hook_reason();  // it names a process
    for (v1::Process& p : *a.mutable_processes()) {
      p.clear_pid();
      p.clear_command();
      p.clear_hook_version();
    }
  }
  for (v1::ForeignProcess& p : *message.mutable_foreign()) p.clear_pid();
  if (!message.config_error().empty()) message.set_config_error("the agent's log shows the error");
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string out;
  // Only text that is not UTF-8 could fail, and the API server checks the names of pods.
  if (!google::protobuf::util::MessageToJsonString(message, &out, options).ok()) return "{}\n";
  return out + "\n";
}

}  // namespace sluice::agent
