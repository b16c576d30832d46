// Follows what the agent says. Frames are received on the client's thread, which makes no driver call and waits for no
// lock of a launch; what they ask for is done on a thread of its own.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_BUDGET_FOLLOWER_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_BUDGET_FOLLOWER_H_

namespace sluice {

// In this process (again in a forked child): attaches, waits up to `wait_ms` for the first budgets, starts the thread.
// Without an agent's socket it does nothing. False: there is a socket, and nobody has answered by then.
bool StartFollower(int wait_ms);
// Has it look at the devices soon. Without an agent nobody does.
void WakeFollower();
// Says something to the agent's operator (SLUICE_NOTICE_*). Never waits; without an agent it does nothing.
void NotifyAgent(unsigned kind, const char* text);
// The counters of all devices into the shared page. Makes no driver call.
void PublishAll();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_BUDGET_FOLLOWER_H_
