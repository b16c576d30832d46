// Messages as JSON for scripts: proto field names, every field present, numbers as numbers (protobuf's own JSON writes
// 64-bit ones as strings).
#ifndef SLUICE_CLI_JSON_H_
#define SLUICE_CLI_JSON_H_

#include <google/protobuf/message.h>

#include <string>

namespace sluice::cli {

std::string ToJson(const google::protobuf::Message& message);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_JSON_H_
