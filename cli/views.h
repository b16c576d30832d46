// What `status` and `top` show, as text: pure functions of the agent's answer.
#ifndef SLUICE_CLI_VIEWS_H_
#define SLUICE_CLI_VIEWS_H_

#include <string>

#include "agent.pb.h"

namespace sluice::cli {

std::string StatusText(const v1::Status& status);

// Rates are differences between two answers; where `before` is null, averages since the processes attached. Sorted by
// stall share.
std::string TopText(const v1::Status* before, const v1::Status& now);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_VIEWS_H_
