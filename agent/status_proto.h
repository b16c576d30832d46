// Status values to the messages of proto/agent.proto.
#ifndef SLUICE_AGENT_STATUS_PROTO_H_
#define SLUICE_AGENT_STATUS_PROTO_H_

#include "agent.pb.h"
#include "agent/status.h"

namespace sluice::agent {

void ToProto(const NodeStatus& from, v1::Status* to);
void ToProto(const Event& from, v1::Event* to);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_STATUS_PROTO_H_
