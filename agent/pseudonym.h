// Names of allocations for unauthenticated readers. An id is the name of a folder on the node, and `sluice
// set` takes it; a pseudonym tells allocations apart and says nothing else.
#ifndef SLUICE_AGENT_PSEUDONYM_H_
#define SLUICE_AGENT_PSEUDONYM_H_

#include <string>

#include "agent/status.h"

namespace sluice::agent {

// The node's key: the file's content, or a fresh one that is written there, for its owner alone. It survives the agent,
// so that a time series keeps its label. Where the file cannot be used, `error` is a sentence, and the key is for this
// run.
std::string PseudonymKey(const std::string& path, std::string* error);

// 12 hexadecimal digits, the same for the same key and id.
std::string Pseudonym(const std::string& key, const std::string& id);

// Replaces the ids of allocations.
void HideIds(const std::string& key, NodeStatus* status);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_PSEUDONYM_H_
