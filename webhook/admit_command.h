// `sluice admit`: shows the webhook's decision about manifests without a cluster, with the webhook's own code.
#ifndef SLUICE_WEBHOOK_ADMIT_COMMAND_H_
#define SLUICE_WEBHOOK_ADMIT_COMMAND_H_

namespace CLI {
class App;
}

void AddAdmitCommand(CLI::App& app);

#endif  // SLUICE_WEBHOOK_ADMIT_COMMAND_H_
