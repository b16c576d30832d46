// What a process is told about itself on stderr: a line at exit and on a period, and a sentence when oversubscription
// makes it slow. The agent hears of the latter too.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_DIAGNOSTICS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_DIAGNOSTICS_H_

namespace sluice {

// One line for each device in use; `when`: "exit" or "now".
void PrintSummary(const char* when);
// Every ten seconds: whether the process has been slow since the last call. Makes no driver call.
void JudgePeriod();
// At exit, of a process that lived for a few periods at most.
void JudgeAtExit();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_DIAGNOSTICS_H_
