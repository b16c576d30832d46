// Messages as JSON for scripts: proto field names, numbers as numbers (protobuf's own JSON makes strings of 64-bit
// ones), every field present.
#ifndef SLUICE_CLI_JSON_H_
#define SLUICE_CLI_JSON_H_

#include <google/protobuf/message.h>

#include <string>

namespace sluice::cli {

std::string ToJson(const google::protobuf::Message& message);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_JSON_H_
