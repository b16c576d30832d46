/* The agent's list of its node's pods for the device plugin: a file in the agent's run directory, by which the plugin
 * honours the scheduler extender's reservations. Plain C, no dependency.
 *
 * The agent writes the file under a temporary name in the same directory and renames it: right after its first list of
 * the node's pods, and within 50 ms of a change that the watch reports. It does not write an unchanged file. While the
 * agent is down the file stays, since old reservations are better than none. The plugin follows the directory by
 * inotify.
 *
 *   {"version":1,
 *    "pods":[{"uid":"8c2e...","order":7,
 *             "containers":[{"name":"load","kind":"init","units":30},{"name":"c","kind":"regular","units":50}],
 *             "placement":{"load":["GPU-..."],"c":["GPU-..."]},
 *             "grown":{"GPU-...":20}}]}
 *
 * pods: every pod that is bound to this node, requests units of SLUICE_RESOURCE and has not ended (its object exists,
 *   its phase is neither Succeeded nor Failed). Whether kubelet has admitted it, and whether it is terminating, does
 *   not matter. In no order.
 * uid: metadata.uid.
 * containers: in kubelet's order: init containers and sidecars as in the spec, then the regular ones. Those without
 *   units may be left out. kind: "init", "sidecar" (an init container with restartPolicy Always) or "regular".
 *   units: the limit of SLUICE_RESOURCE.
 *   cards: absent, or the number of GPUs over which the units are split evenly (the webhook's marker, gpu-count).
 * order: absent, or a number that grows in the order in which the watch showed the pods. Kubelet's watch shows them in
 *   the same order, and kubelet admits them in it.
 * placement: the value of the pod's annotation "sluice.dev/placement", as an object. Absent if the pod has no such
 *   annotation, or its value is not an object of arrays of strings: the extender did not place such a pod.
 *
 * grown: absent, or by GPU the units that the running pod was granted beyond those that kubelet gave it (its
 * annotations gpu-fraction or gpu-memory changed); negative if it has fewer. The plugin gives out the sum of a GPU to
 * no pod. It holds while the pod lives, also while the agent is down.
 *
 * Unknown members are ignored. A file of another version, or without this JSON, changes nothing. */
#ifndef SLUICE_RESERVATION_H_
#define SLUICE_RESERVATION_H_

#define SLUICE_RESERVATION_FILE "reservations.json" /* in the agent's --run-dir, SLUICE_HOST_AGENT_RUN_DIR */

#endif /* SLUICE_RESERVATION_H_ */
