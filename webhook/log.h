// The webhook's log: lines on stderr.
#ifndef SLUICE_WEBHOOK_LOG_H_
#define SLUICE_WEBHOOK_LOG_H_

#include <string>

namespace sluice::webhook {

// Writes one line. Control characters become '?': text from users must not add lines of its own. Thread-safe.
void Log(std::string line);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_LOG_H_
