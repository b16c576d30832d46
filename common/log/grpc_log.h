// gRPC's own messages in the daemon's log, in its form. For programs that link gRPC.
#ifndef SLUICE_COMMON_LOG_GRPC_LOG_H_
#define SLUICE_COMMON_LOG_GRPC_LOG_H_

#include <grpc/support/log.h>

#include "common/log/log.h"

namespace sluice {

// Before the first call of gRPC that may log. Without it gRPC writes lines of its own form to stderr.
inline void LogGrpcMessages() {
  gpr_set_log_function([](gpr_log_func_args* message) {
    const LogLevel level = message->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kWarn
                           : message->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                        : LogLevel::kDebug;
    Log(level, message->message, {{"from", "grpc"}});
  });
}

}  // namespace sluice

#endif  // SLUICE_COMMON_LOG_GRPC_LOG_H_
