// Follows the agent's budgets and tokens. Frames are received on the client's thread, which makes no driver call and
// waits for no lock of a launch. Eviction and fetches for them are done on a thread of their own.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_BUDGET_FOLLOWER_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_BUDGET_FOLLOWER_H_

namespace sluice {

namespace client {
class AgentClient;
}

// The connection to the agent; null: the process has no agent's socket. The same at each call.
client::AgentClient* Client();
// In this process (again in a forked child): starts the thread, attaches, waits up to `wait_ms` for the first budgets.
// False: there is an agent's socket, and no agent has answered in time.
bool StartFollower(int wait_ms);
// Has the thread serve the devices soon.
void WakeFollower();
// Sends the agent a notice for its operator (SLUICE_NOTICE_*). Never waits; without an agent it does nothing.
void NotifyAgent(unsigned kind, const char* text);
// Writes the counters of all devices into the shared page. Makes no driver call. Takes each device's lock.
void PublishAll();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_BUDGET_FOLLOWER_H_
