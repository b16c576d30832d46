// `sluice admit`: what the webhook would do to these manifests, without a cluster. The same function decides.
#ifndef SLUICE_WEBHOOK_ADMIT_COMMAND_H_
#define SLUICE_WEBHOOK_ADMIT_COMMAND_H_

namespace CLI {
class App;
}

void AddAdmitCommand(CLI::App& app);

#endif  // SLUICE_WEBHOOK_ADMIT_COMMAND_H_
