/* The reservations file: the agent describes the pods of its node to the device plugin, which by it keeps the
 * reservations of the scheduler extender. It lies in the agent's run directory. Plain C without dependencies.
 *
 * The agent writes the file to a temporary name in the same directory and renames it. It does so after its first list
 * of the node's pods and within 50 ms of a change that the watch reports; never without a change. The file stays while
 * the agent is away: old reservations are better than none. The plugin follows the directory by inotify.
 *
 *   {"version":1,
 *    "pods":[{"uid":"8c2e...",
 *             "containers":[{"name":"load","kind":"init","units":30},{"name":"c","kind":"regular","units":50}],
 *             "placement":{"load":["GPU-..."],"c":["GPU-..."]}}]}
 *
 * pods: every pod bound to this node that asks for units of SLUICE_RESOURCE and has not ended, in any order. A pod has
 *   ended when its object is gone or its phase is Succeeded or Failed. Pods that kubelet has not admitted, and pods
 * that terminate, are in the list. uid: metadata.uid. containers: in kubelet's order: init containers and sidecars as
 * in the spec, then the regular ones. Those without units may be left out. kind: "init", "sidecar" (an init container
 * with restartPolicy Always) or "regular". units: the limit of SLUICE_RESOURCE. placement: the value of the pod's
 * annotation "sluice.dev/placement", as an object. Absent where the extender did not place the pod: it has no such
 * annotation, or one that is no object of arrays of strings.
 *
 * Readers ignore unknown members. A file of another version, or one that is no such JSON, changes nothing. */
#ifndef SLUICE_RESERVATION_H_
#define SLUICE_RESERVATION_H_

#define SLUICE_RESERVATION_FILE "reservations.json" /* in the agent's --run-dir, SLUICE_HOST_AGENT_RUN_DIR */

#endif /* SLUICE_RESERVATION_H_ */
