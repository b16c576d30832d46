/* What the agent tells the device plugin of the pods of its node: a file in the agent's run directory, by which the
 * plugin keeps what the scheduler extender reserved. Plain C, no dependency.
 *
 * The agent writes it to a temporary name in the same directory and renames it, at once after its first list of the
 * node's pods and within 50 ms of a change that the watch reports; not when nothing changed. While the agent is away
 * the file stays: old reservations are better than none. The plugin follows the directory by inotify.
 *
 *   {"version":1,
 *    "pods":[{"uid":"8c2e...",
 *             "containers":[{"name":"load","kind":"init","units":30},{"name":"c","kind":"regular","units":50}],
 *             "placement":{"load":["GPU-..."],"c":["GPU-..."]}}]}
 *
 * pods: every pod bound to this node that asks for units of SLUICE_RESOURCE and has not ended (its object is there, its
 *   phase is neither Succeeded nor Failed), admitted by kubelet or not, terminating or not. No order.
 * uid: metadata.uid.
 * containers: in kubelet's order: init containers and sidecars as in the spec, then the regular ones. Those without
 *   units may be left out. kind: "init", "sidecar" (an init container with restartPolicy Always) or "regular".
 *   units: the limit of SLUICE_RESOURCE.
 * placement: the value of the pod's annotation "sluice.dev/placement", as an object. Absent where the pod has none or
 *   one that is no object of arrays of strings: such a pod was not placed by the extender.
 *
 * Unknown members are ignored. A file of another version, or one that is no such JSON, changes nothing. */
#ifndef SLUICE_RESERVATION_H_
#define SLUICE_RESERVATION_H_

#define SLUICE_RESERVATION_FILE "reservations.json" /* in the agent's --run-dir, SLUICE_HOST_AGENT_RUN_DIR */

#endif /* SLUICE_RESERVATION_H_ */
