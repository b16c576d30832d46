// Text of the user for messages and for the agent.
#ifndef SLUICE_CLI_TEXT_H_
#define SLUICE_CLI_TEXT_H_

#include <string>
#include <string_view>

namespace sluice::cli {

// Every byte outside of printable ASCII replaced by '?', as the agent does with a command. A protobuf string must be
// UTF-8, and a file name need not be.
inline std::string Printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 127) c = '?';
  }
  return out;
}

}  // namespace sluice::cli

#endif  // SLUICE_CLI_TEXT_H_
