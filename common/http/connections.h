// All connections of a server, and choices among them. Internal to webhook/server; for the loop's thread alone.
#ifndef SLUICE_WEBHOOK_SERVER_CONNECTIONS_H_
#define SLUICE_WEBHOOK_SERVER_CONNECTIONS_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "webhook/server/http_connection.h"

namespace sluice::webhook {

using Connections = std::unordered_map<uint64_t, Connection>;

// Of the chosen ones the one that has waited longest for its client. nullptr: none is chosen.
template <typename Chosen>
Connection* OldestOf(Connections& all, Chosen chosen) {
  Connection* oldest = nullptr;
  for (auto& [id, c] : all) {
    if (chosen(c) && (oldest == nullptr || c.since < oldest->since)) oldest = &c;
  }
  return oldest;
}

// Of the chosen ones, which may then be closed one by one.
template <typename Chosen>
std::vector<uint64_t> IdsOf(const Connections& all, Chosen chosen) {
  std::vector<uint64_t> out;
  for (const auto& [id, c] : all) {
    if (chosen(c)) out.push_back(id);
  }
  return out;
}

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_CONNECTIONS_H_
