// Texts of strangers (file names, files' contents, names of programs) in the agent's messages and answers.
#ifndef SLUICE_AGENT_PRINTABLE_H_
#define SLUICE_AGENT_PRINTABLE_H_

#include <string>
#include <string_view>

namespace sluice::agent {

// The text with '?' for control characters and for bytes that are not UTF-8. Protobuf and JSON refuse a whole message
// for one such byte, and a terminal obeys the others. A text may be cut within a character.
std::string Printable(std::string_view text);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_PRINTABLE_H_
