// docs/operate/annotations.md. The tables come from proto/settings.def; a test compares the file with this output.
#include <nlohmann/json.hpp>

#include "common/settings/settings.h"
#include "sluice/names.h"
#include "webhook/decision/decision.h"
#include "webhook/decision/policy.h"

namespace sluice::webhook {
namespace {

// The webhook's answer to a pod with this annotation.
std::string Answer(const settings::Key& key, std::string_view value) {
  const std::string annotation = std::string(SLUICE_DOMAIN "/") + std::string(key.name);
  Json annotations = {{annotation, value}};
  const bool size = key.id == settings::Id::kGpuFraction || key.id == settings::Id::kGpuMemory;
  if (!size && key.id != settings::Id::kInject) annotations[SLUICE_DOMAIN "/" SLUICE_KEY_GPU_FRACTION] = "0.5";
  const Json pod = {{"metadata", {{"annotations", annotations}}},
                    {"spec", {{"containers", {{{"name", "trainer"}, {"image", "pytorch"}}}}}}};
  Config config;
  config.assumed_gpu_memory = uint64_t{80} << 30;
  const Decision d = Decide({pod, "team-a", config, {}});
  return d.verdict == Verdict::kDeny ? d.Message() : "accepted";
}

std::string Cell(std::string_view text) { return text.empty() ? "-" : std::string(text); }

}  // namespace

std::string AnnotationsPage() {
  std::string out = R"(# Annotations

<!-- Written by `sluice-webhook --print-annotations`; a test holds this file equal to the code. -->

`sluice.dev/<key>` on a pod means the pod's only regular container ([which one](#which-container)) and every container
that asks for the resource `sluice.dev/gpu-percent` by itself. `<key>.sluice.dev/<container>` means one
container by its name: regular, init or sidecar. A container's own annotation goes before the pod's. In a Deployment, Job or
another workload the annotations belong into the template's metadata.

| key | accepted | meaning | default | may change on a running pod | variable in the container |
|---|---|---|---|---|---|
)";
  for (const settings::Key& k : settings::Table()) {
    out += "| `" + std::string(k.name) + "` | " + std::string(k.accepted) + " | " + std::string(k.meaning) + " | " +
           Cell(k.default_text) + " | " + (k.settable ? "yes" : "no") + " | " +
           (k.variable.empty() ? "-" : "`" + std::string(k.variable) + "`") + " |\n";
  }
  out += R"(
`gpu-fraction` and `gpu-memory` of a running pod change as far as its GPU has room; the answer is in `sluice.dev/granted`
([sharing.md](sharing.md#changing-a-running-pods-size)).

`gpu-count` makes the size and all other settings those of each of several GPUs ([sharing.md](sharing.md#shares-of-several-gpus)). A
container that asks for the resource alone gets it split evenly. More GPUs than the largest known node of the pod has are denied.

A wrong value is denied at admission with the field, the value and what is accepted; nothing is ignored and nothing is
clamped. All errors of a pod come in one message.

## Examples

| annotation | answer |
|---|---|
)";
  for (const settings::Key& k : settings::Table()) {
    for (const std::string_view value : {k.good, k.bad}) {
      out += "| `" SLUICE_DOMAIN "/" + std::string(k.name) + ": \"" + std::string(value) + "\"` | " + Answer(k, value) +
             " |\n";
    }
  }
  out += R"(
(Keys other than the sizes and `inject` stand beside `sluice.dev/gpu-fraction: "0.5"` here.)

```yaml
apiVersion: v1
kind: Pod
metadata:
  name: two-models
  annotations:
    gpu-fraction.sluice.dev/large: "0.7"
    gpu-fraction.sluice.dev/small: "0.3"
    sluice.dev/log-level: INFO        # both: every container that has a share
spec:
  containers:
  - {name: large, image: vllm/vllm-openai}
  - {name: small, image: vllm/vllm-openai}
```

`sluice admit -f pod.yaml` shows what becomes of a manifest, without a cluster (for `gpu-memory` with `--gpu-memory 24Gi`: there is
no node that tells its card).

## Which container

Other projects add containers to users' pods. `sluice.dev/gpu-fraction` and `sluice.dev/gpu-memory` mean the one regular
container that is left by these rules, in this order:

1. Containers that the annotation's writer did not write do not count. The API server records them before it calls webhooks
   (`metadata.managedFields`), and `kubectl apply` in its own annotation.
2. Known sidecars do not count (`sidecars` in the [configuration](configuration.md#sluice-webhook)).
3. Of several that are left, `kubectl.kubernetes.io/default-container` names one.

Otherwise the pod is denied, and the annotation must name its container. Native sidecars (`initContainers` with
`restartPolicy: Always`) never count.

## What the webhook adds

To each container that is given a share, and to nothing else: the resource in limits and requests, `LD_PRELOAD` with sluice's
library in front of what is there, and the variables of the table for what was said. The pod gets the annotation
`sluice.dev/injected`, which says what was decided, why, and by which version. Only sluice writes it. Where the configuration says
so: `runtimeClassName` of a pod that has none, and `schedulerName` of a pod that leaves it to the default scheduler and names no node.
Where the DRA driver serves the nodes, a claim takes the place of the resource and the variables
([dra](dra.md#pods-with-annotations)).

- `LD_PRELOAD` by `valueFrom` is denied: it cannot be merged.
- An `LD_PRELOAD` that comes by `envFrom` is replaced; the webhook warns. Set it by `env` to keep both.
- **An image with its own `ENV LD_PRELOAD` loses it**: a variable of the pod replaces the image's, and admission does not see
  images. Remedy: write the image's value into the pod's `env`; the webhook then puts sluice's library in front of it.
- `SLUICE_*` variables that contradict the annotations are denied by name. `SLUICE_SOCKET`, `SLUICE_ENGINE` and
  `SLUICE_DISABLE` belong to the allocation.
- `NVIDIA_VISIBLE_DEVICES` of a container with a share is removed, since the share gives the GPU. The pod's other containers get
  `void`, whatever the pod, the image or `envFrom` says. Containers with a share and `envFrom` get it as well, except with NVIDIA's
  runtime.
- `sluice.dev/inject: "false"` leaves a pod alone, whatever its other annotations say. Beside a request for the resource it is
  denied.
- A pod that is copied (by kubectl's `debug --copy-to`), restored from a backup or applied again is taken as it was: the webhook's
  additions stay, and an old `sluice.dev/placement` is removed.

## Denials beside a share

- A second GPU for the same container: `nvidia.com/gpu`, a MIG instance, the resources of HAMi, Volcano, Aliyun, GPU Manager or
  nvshare, a claim of dynamic resource allocation, KAI's or Run:ai's annotation with their scheduler, the preloaded library of
  another sharing system.
- What reaches past the share: `privileged: true`, `hostPID`, `hostIPC`, and host paths that hold the GPU's device nodes or the
  sockets of sluice, kubelet or container runtime. [security.md](security.md#pods-that-reach-past-their-share) has the settings.

A sandboxed runtime class (gVisor, Kata) gives a warning: the hook cannot work there.

## Workloads

Templates are checked when the workload is applied: those of Kubernetes' own kinds, and those of other projects' that
`webhook.workloads` lists, where pod templates are found by their shape (`spec.containers`). `sluice admit` looks into every
kind, and names annotations of sluice that stand in no template. Those of Jobs and of the workloads that `webhook.queued` lists
also get the units, where [queues](queues.md) count them.

## Aliases

Where the chart allows it (`webhook.aliases`), the forms of other systems are read when none of `sluice.dev` gives a size, and the
webhook warns that they are deprecated here:

- KAI, Run:ai 2: `gpu-fraction`, `gpu-memory` (a whole number of MiB), `gpu-fraction-container-name` (default: the first container),
  `gpu-fraction-num-devices` (`gpu-count`);
- KAI, Run:ai 3: `nvidia.com/container.<name>.gpu-memory.request` (the budget) and `.limit` (`memory-limit`);
- HAMi: the resources `nvidia.com/gpumem`, `nvidia.com/gpumem-percentage` and `nvidia.com/gpucores` (`compute-limit`), with the number in
  `nvidia.com/gpu` (`gpu-count`);
- nvshare: the resource `nvshare.com/gpu` (a tenth of a GPU).

[migration.md](migration.md) has a before and after of each.

## gpu-memory

Bytes are turned into percent of the smallest GPU among the nodes that `nodeName`, `nodeSelector` and the required node
affinity admit; the agent then holds the bytes. More than the smallest GPU is denied with a table of the models. Where no
node's GPUs are known, the chart's value `webhook.assumedGpuMemory` counts; without it such a pod is denied (a template of a
workload is only warned about: nodes may come).
)";
  return out;
}

}  // namespace sluice::webhook
