// Another size for a running pod: its annotations gpu-fraction and gpu-memory may change, and its containers get the
// rest of their GPUs. The units that kubelet gave stay. Pure functions.
#ifndef SLUICE_AGENT_KUBERNETES_RESIZE_H_
#define SLUICE_AGENT_KUBERNETES_RESIZE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/kubernetes/facts.h"

namespace sluice::agent {

// The answer to one container. Percents are of each of its GPUs.
struct SizeGrant {
  uint32_t units = 0;           // by kubelet
  uint32_t requested = 0;       // by the annotations; above 100: more memory than the GPU has
  uint32_t percent = 0;         // granted: at most 100
  std::optional<Bytes> memory;  // granted, where the annotations give bytes
  uint64_t turn = 0;            // growth that waits is served in this order
  std::vector<std::string> gpus = {};

  bool IsWaiting() const { return percent < requested; }
};

// By pod uid and container: those whose annotations give another size than the one that they started with, and those
// that had an answer before.
using SizeGrants = std::map<std::string, std::map<std::string, SizeGrant>>;

// Decides anew for all containers. Units that kubelet gave go before all growth: a container that shrank gets its units
// back whenever it wants them. Growth takes the rest of a GPU beside the other containers' sizes and the reservations
// of pods that kubelet has not admitted yet. A container that got more earlier keeps it before others grow.
SizeGrants GrantSizes(const std::vector<CardStatus>& cards, const GivenOut& given, const Pods& pods,
                      const SizeGrants& before);

// The units of one GPU.
struct CardUse {
  int held = 0;                                               // by kubelet, of pods that have not ended
  int grown = 0;                                              // granted beyond them; negative: below them
  std::map<std::string, int> pods;                            // `grown` by pod uid, where it is not 0
  std::map<std::string, std::map<std::string, int>> holders;  // units by pod uid and container
  int Free() const;                                           // for new pods
};
std::map<std::string, CardUse> UseOfCards(const GivenOut& given, const Pods& pods, const SizeGrants& grants);

// The pod annotation sluice.dev/granted (proto/sluice/names.h). Reading skips entries of another form.
std::string FormatGranted(const std::map<std::string, SizeGrant>& grants);
std::map<std::string, GrantedSize> ParseGranted(const std::string& text);

// The Event that tells the answer.
struct ResizeText {
  bool waits = false;
  std::string message;
};
ResizeText DescribeGrant(const std::string& container, const SizeGrant& grant);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_KUBERNETES_RESIZE_H_
