// Where sluice is installed in a cluster, by its webhook configuration: names and namespaces are the chart's values.
#ifndef SLUICE_CLI_INSTALLATION_H_
#define SLUICE_CLI_INSTALLATION_H_

#include <string>

#include "cli/kubectl.h"

namespace sluice::cli {

// The label selector of a part's pods (node, webhook, scheduler). The chart's nameOverride changes it. Without a
// webhook configuration, or without the right to list them: the chart's default name.
std::string SelectorOf(const Kubectl& kubectl, const std::string& component);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_INSTALLATION_H_
