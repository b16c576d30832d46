// Lines on stderr about the process as a whole: its figures at exit and on a period, and a warning when
// oversubscription makes it slow. The agent gets a notice then.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_DIAGNOSTICS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_DIAGNOSTICS_H_

namespace sluice {

// One logfmt line for each device in use; its keys are the names of the agent's metrics. `when`: "exit" or "status".
void LogSummary(const char* when);
// Every ten seconds: whether the process has been slow since the last call. Makes no driver call.
void CheckPeriod();
// At exit, for a process that ran for a few periods at most.
void CheckAtExit();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_DIAGNOSTICS_H_
