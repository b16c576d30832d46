"""The commands that the documents show, and the test of each. docs_test.py compares this list with the documents.

Run: a test of this folder runs the command as it is; `where` replaces the reader's own names.
By: another test runs it in another form; that test's file must contain the text.
A command that no test here can run has its reason in the document, as `# needs a GPU` or `# needs a registry`.
"""

import dataclasses


@dataclasses.dataclass
class Run:
    says: str = ""  # expected output
    where: dict = dataclasses.field(default_factory=dict)
    more: str = ""  # further words for the simulated machine
    status: int = 0
    seconds: int = 300


@dataclasses.dataclass
class By:
    file: str
    text: str


MARKS = ("needs a GPU", "needs a registry")

# On any machine, in this order. `{folder}` is a scratch folder; the programs are in PATH.
MACHINE = {
    "sluice run --fraction 0.25 -- python3 train.py": Run(
        "budget_bytes=37526175744", {"sluice run": "sluice run --gpu sim", "train.py": "{here}/train.py"}
    ),
    "sluice run --memory 4Gi --log-level INFO -- python3 train.py": Run(
        "budget_bytes=4294967296", {"sluice run": "sluice run --gpu sim", "train.py": "{here}/train.py"}
    ),
    # Without a GPU or an agent it must report both.
    "sluice doctor": Run("fix:", status=1),
    "sluice admit -f pod.yaml": Run("sluice.dev/gpu-percent", {"pod.yaml": "{root}/examples/half-a-gpu.yaml"}),
    "sluice-agent --print-metrics": Run("sluice_live_bytes"),
    "sluice-webhook --print-annotations": Run("gpu-fraction"),
    "sluice-webhook --print-policy manifests --without-policy": Run("MutatingWebhookConfiguration"),
    "sluice simulate-cluster --generated 1213 8152": Run("look-ahead"),
    "sluice simulate-cluster nodes.csv pods.csv --seeds 10 --svg placement.svg": Run(
        "best-fit",
        {"nodes.csv pods.csv": "{folder}/nodes.csv {folder}/pods.csv", "placement.svg": "{folder}/placement.svg"},
    ),
    "sluice simulate-cluster nodes.csv pods.csv --policy claims --seeds 10": Run(
        "claims-look-ahead-fixed", {"nodes.csv pods.csv": "{folder}/nodes.csv {folder}/pods.csv"}
    ),
    "sluice-extender --config /etc/sluice/extender.yaml": Run(
        "", {"/etc/sluice/extender.yaml": "{folder}/extender.yaml"}, more="--check-config"
    ),
    "sluice-trace synth transformer|decode TO [--layers, --width, --tokens ...]": Run(
        "",
        {
            "transformer|decode": "transformer",
            "TO": "{folder}/made",
            "[--layers, --width, --tokens ...]": "--layers 2 --width 512 --tokens 64",
        },
    ),
    "sluice-trace info FILE": Run("SYNTHETIC", {"FILE": "{folder}/made"}),
    "sluice-trace pack FROM TO": Run("", {"FROM TO": "{folder}/made {folder}/packed"}),
    "sluice-trace cut FROM TO --steps N": Run("", {"FROM TO": "{folder}/packed {folder}/short", "N": "2"}),
    "sluice-trace bound FILE --budget-gib N": Run("", {"FILE": "{folder}/short", "N": "0.05"}),
    "sluice-trace uses FILE TO": Run("", {"FILE TO": "{folder}/short {folder}/uses"}),
    "sluice-trace interval FILE KERNEL BETWEEN": Run(
        "median_us", {"FILE KERNEL BETWEEN": "{root}/experiments/traces/decode.sltrace layer_norm ActivationSilu"}
    ),
    "sluice-trace interval experiments/traces/decode.sltrace layer_norm ActivationSilu": Run("317"),
    "sluice replay FILE --gpu sim --profile card-8g --memory 4Gi [--prefetch off|launch|predict] [--json] "
    "[--timeline FILE]": Run(
        '"launches"',
        {
            "replay FILE": "replay {folder}/short",
            "[--prefetch off|launch|predict]": "--prefetch launch",
            "[--json]": "--json",
            "[--timeline FILE]": "--timeline {folder}/timeline",
        },
    ),
    "sluice replay FILE --gpu sim --explain": Run("", {"FILE": "{folder}/short"}),
    "sluice-replay FILE": Run("steps", {"FILE": "{folder}/short"}),
    "sluice record -o FILE -- CMD...": Run(
        "", {"record": "record --gpu sim", "FILE": "{folder}/recorded", "CMD...": "sluice-replay {folder}/short"}
    ),
}

# On the local cluster, in this order.
CLUSTER = {
    "scripts/image OUT.tar": Run(
        "", {"OUT.tar": "--built {build} --name registry.example/sluice:{version} {folder}/OUT.tar"}
    ),
    "ctr -n k8s.io images import OUT.tar": Run("", {"ctr": "ctr -a {containerd}", "OUT.tar": "{folder}/OUT.tar"}),
    "kubectl create namespace sluice-system": Run("created"),
    "kubectl label namespace sluice-system pod-security.kubernetes.io/enforce=privileged": Run("labeled"),
    "helm install sluice charts/sluice -n sluice-system --set image.registry=registry.example --wait": Run(
        "deployed", more="{simulated}"
    ),
    "kubectl get nodes -o "
    "custom-columns='NODE:.metadata.name,GPU-PERCENT:.status.allocatable.sluice\\.dev/gpu-percent'": Run("200"),
    "helm test sluice -n sluice-system": Run("Succeeded"),
    "kubectl -n sluice-system get pods": Run("Running"),
    "kubectl apply": Run("created", more="-f {folder}/pod.yaml"),
    "kubectl sluice set POD key=value": Run("annotated", {"POD": "half-a-gpu", "key=value": "memory-factor=50"}),
    "kubectl describe pod": Run("sluice.dev/memory-factor: 50", more="half-a-gpu"),
    "kubectl logs": Run("", more="half-a-gpu"),
    "kubectl get nodes -o yaml": Run("sluice.dev/gpu-percent"),
    "kubectl sluice status": Run("half-a-gpu"),
    "kubectl sluice top": Run("half-a-gpu", more="--once"),
    "kubectl sluice doctor": Run("webhook: registered"),
    "helm upgrade sluice charts/sluice -n sluice-system --reuse-values --set scheduler.mode=own": Run(
        "upgraded", more="--set scheduler.image.repository=registry.example/kube-scheduler --wait --timeout 120s"
    ),
    "helm rollback sluice -n sluice-system": Run("success", more="--wait"),
    "helm upgrade sluice charts/sluice -n sluice-system --reuse-values --set scheduler.mode=cluster": Run(
        "upgraded", more="--wait"
    ),
    "kubectl -n sluice-system get configmap sluice-scheduler -o jsonpath='{.data.fragment\\.yaml}'": Run("extenders:"),
    "helm upgrade sluice charts/sluice -n sluice-system --reuse-values --set "
    "scheduler.mode=own,scheduler.volcano.enabled=true": Run(
        "upgraded", more="--set scheduler.image.repository=registry.example/kube-scheduler --wait --timeout 120s"
    ),
    "kubectl -n sluice-system get configmap sluice-scheduler -o jsonpath='{.data.volcano\\.yaml}'": Run(
        "extender.urlPrefix"
    ),
    "kubectl delete resourceclaimtemplates -A -l app.kubernetes.io/managed-by=sluice": Run(),
    "helm uninstall sluice -n sluice-system": Run("uninstalled", more="--wait"),
    "kubectl annotate nodes --all sluice.dev/gpus-": Run("annotated"),
    "kubectl delete namespace sluice-system": Run("deleted"),
    "sha256sum -c SHA256SUMS": Run("OK", {"sha256sum": "cd {folder}/release && sha256sum"}),
    "ctr -n k8s.io images import sluice-image-0.1.0.tar": Run(
        "", {"ctr": "ctr -a {containerd}", "sluice-image": "{folder}/release/sluice-image"}
    ),
    # Under the chart's default name.
    "helm install sluice sluice-0.1.0.tgz -n sluice-system --create-namespace --set image.pullPolicy=Never": Run(
        "deployed",
        {"sluice-0.1.0": "{folder}/release/sluice-0.1.0"},
        more="{simulated} --set image.registry= --wait --timeout 90s",
    ),
}

ELSEWHERE = {
    # These run the tests, or run beside them in CI.
    "scripts/pictures": By("scripts/pictures", "scripts/setup pictures"),
    "scripts/setup pictures": By("scripts/pictures", "scripts/setup pictures"),
    "sluice admit --convert -f FILE": By("test/webhook/admit_test.py", '"--convert"'),
    "sluice admit --aliases -f FILE": By("test/webhook/admit_test.py", '"--aliases"'),
    "helm template --set platform=openshift": By("test/cluster/chart_platform_cases.py", '"platform=openshift"'),
    "sluice run --gpus 2": By("test/agent/cli_test.py", '"--gpus", "2"'),
    "sluice park ID": By("test/engine/park_test.py", 'n.cli("park", "one")'),
    "sluice-trace mark FROM TO --launches N": By("test/trace/tools_test.cc", "MarkSteps("),
    "kubectl sluice park POD": By("test/cluster/product_life_test.py", '"park", "live", "-n", SPACE'),
    "kubectl sluice wake POD": By("test/cluster/product_life_test.py", '"wake", "live", "-n", SPACE'),
    "sluice wake ID": By("test/engine/park_test.py", 'n.cli("wake", "one")'),
    "sluice set ID park-after=10m": By("test/engine/park_test.py", "park-after="),
    "make arm64": By("Makefile", "scripts/cross test && scripts/cross build"),
    "scripts/cross build": By("scripts/nightly", "scripts/cross build"),
    "scripts/cross test": By("scripts/nightly", "scripts/cross test"),
    "scripts/release --arm64 BUILD": By("scripts/release", "--arm64 BUILD"),
    "kubectl get resourceclaims -A": By("test/cluster/chart_dra_cases.py", "resourceclaims"),
    "scripts/nightly --only cluster": By("scripts/nightly", "cluster"),
    "kubectl annotate --overwrite pod trainer sluice.dev/gpu-fraction=0.7": By(
        "test/cluster/product_test.py", '"annotate", "--overwrite", "pod", name, change'
    ),
    "kubectl sluice set trainer gpu-fraction=0.7": By("test/agent/kubernetes_test.py", '"gpu-fraction=0.5"'),
    "make demo": By("Makefile", "demo:\n\t@scripts/demo"),
    "make test": By("Makefile", "test:\n\t@scripts/test"),
    "make build": By("scripts/demo", "ninja"),
    "make check": By("Makefile", "check:\n\t@scripts/check"),
    "make release": By("test/cluster/release_test", "scripts/release"),
    "make cluster-demo": By("test/cluster/bench", "test/cluster/demo"),
    "make bench-cluster": By("Makefile", "test/cluster/bench"),
    "docker build -t registry.example/sluice:0.1.0 .": By("scripts/image", 'buildah bud "${arguments[@]}"'),
    "helm upgrade --install sluice charts/sluice -n sluice-system --create-namespace --set dra.enabled=true": By(
        "test/cluster/chart_dra_cases.py", '"dra.enabled=true"'
    ),
    "kubectl apply -f manifests/sluice.yaml": By(
        "test/cluster/product_life_test.py", 'kubectl("apply", "-f", p.ROOT / "manifests" / "sluice.yaml")'
    ),
    "build/bin/kubectl-sluice": By("test/cluster/product.py", '"kubectl", "sluice"'),
    "sluice top": By("test/cluster/product_life_test.py", '"top", "--once"'),
    "sluice-trace explain FILE REPLAYED": By(
        "test/trace/replay_test.py", '"sluice-trace", "explain", trace, folder / "predict", "--json"'
    ),
    "kubectl create clusterrolebinding scraper --clusterrole=sluice-metrics-reader "
    "--serviceaccount=monitoring:prometheus": By("test/agent/kubernetes_test.py", '"name": "sluice-metrics-reader"'),
    "sluice status -o json": By("test/agent/agent_rig.py", '"status", "-o", "json"'),
    "kubectl -n sluice-system exec ds/sluice-node -c agent -- /usr/bin/sluice events": By(
        "test/cluster/product.py", '"exec", node_pod(), "-c", "agent", "--", *command'
    ),
    "sluice events": By("test/agent/agent_rig.py", 'cli("events"'),
    "sluice set ID key=value...": By("test/agent/budgets_test.py", 'cli("set"'),
    "build/test/scheduler_latency": By("test/cluster/bench", '"$build/test/scheduler_latency" 1000'),
    "sluice-trace settle RAW TO": By("test/trace/settle_test.cc", "Settle("),
}
