"""Messages of the engine that its tests match as text: those that users read.

All else a test reads by key: the exit line, event lines (`event key=value`), counters, the simulated GPU's figures.
Users act on a warning, and its words are the behaviour: it names the setting, the sizes or the reason. No key says the
same, so its test must see the words. They are here alone, and a new wording changes this file alone.
"""

import re

# ERROR and WARN at the start. They name a variable and the accepted values, or the state without an agent.
WRONG_VALUE = re.compile(r"^sluice: ERROR .*$", re.M)
NO_AGENT_BUDGET = re.compile(
    r"^sluice: WARN SLUICE_SOCKET: no agent answers at '[^']*'; until one does, the environment sets the budget$", re.M
)
NO_AGENT_NO_BUDGET = re.compile(r"^sluice: WARN .* until one does, this process runs without a budget$", re.M)

# WARN at a refusal: an application shows "out of memory" alone, this line has the sizes and the bound.
REFUSED = re.compile(r"^sluice: WARN \S+: out of memory: .*$", re.M)
REFUSED_BY_LIMIT = re.compile(
    r"out of memory: 64\.00 MiB requested beside 1\.00 GiB; memory-limit is 1\.00 GiB, budget "
)
REFUSED_BY_HOST = re.compile(
    r"out of memory: .* would need more host memory than the container or node has left$", re.M
)

# WARN once a process, on slowness and on its cause.
SLOW = re.compile(r"^sluice: WARN \S+: .* GiB are live in a budget of .*$", re.M)
SHARE_OF_TIME = re.compile(r"\d+ % of the time waits for the link")
UNKNOWN_WAIT = re.compile(r"how long kernels wait for faults is not known")
LARGE_GRAPH = re.compile(r"^sluice: WARN \S+: a CUDA graph uses .*$", re.M)
LOWERED_BY_UNMANAGED = re.compile(
    r"^sluice: WARN \S+: the driver evicts memory of this process .*: unmanaged memory of other processes .*$", re.M
)
# INFO, once a process: the choice, with the times of all strategies.
GRAPH_REMAINDER = re.compile(
    r"INFO .* the part of a graph that does not fit is used (.*?) \((.*?)\); of this part, 0 MiB were loaded by copies"
)

# WARN and INFO, once for each kind of launch: demand faults, or remote access, serve it better.
LEFT_TO_FAULTS = re.compile(r"WARN .*nothing is fetched for such launches from here on")
USED_REMOTELY = re.compile(r"INFO .*are used in host memory and not fetched")

# WARN: memory that is not oversubscribed, or a call that is not allowed, with the setting that changes it.
VMM_NOT_MANAGED = re.compile(r"^sluice: WARN this process allocates through VMM .*: not oversubscribed, .*$", re.M)
VMM_REFUSED = {
    case: re.compile(rf"sluice moves: a handle {case}")
    for case in ("is mapped twice", "is exported", "whose contents are managed memory is mapped")
}
NAMES_UNMANAGED = re.compile(r"SLUICE_UNMANAGED=1")
NO_CHECKPOINT = re.compile(r"cannot checkpoint a process with unified memory")


def lines(pattern, err):
    """The lines of a program's stderr in which the pattern is found."""
    return [line for line in err.splitlines() if pattern.search(line)]
