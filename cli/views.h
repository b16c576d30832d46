// The text of `status` and `top`: pure functions of the agent's answer.
#ifndef SLUICE_CLI_VIEWS_H_
#define SLUICE_CLI_VIEWS_H_

#include <string>

#include "agent.pb.h"

namespace sluice::cli {

std::string StatusText(const v1::Status& status);
// The memory of a parked container that stays on the GPU: "12.0 MiB of unmanaged memory and 300.0 MiB of contexts".
std::string StayingText(const v1::ParkStatus& park);

// Rates are differences of two answers. `before` null: ratios are averages since the processes attached, and rates are
// "-". Sorted by the share of time that streams stall.
std::string TopText(const v1::Status* before, const v1::Status& now);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_VIEWS_H_
