#!/usr/bin/python3
"""The chart's objects for the API server equal the webhook's own manifests: chart_equal_test.py SLUICE_WEBHOOK

The program prints them by `--print-policy manifests`. The admission tests use these, so their results hold for the
chart too. Needs helm, as test/cluster/chart_test.py does."""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
import chart_rig as chart
import yaml


def normal(webhook):
    """A webhook with the API's defaults and without its certificate."""
    out = dict({"matchPolicy": "Equivalent", "reinvocationPolicy": "Never", "timeoutSeconds": 10}, **webhook)
    service = dict({"port": 443}, **out.pop("clientConfig")["service"])
    out["path"] = service["path"], service["port"]
    out["namespaceSelector"] = out.get("namespaceSelector") or {}
    return out


def compare(what, chart_side, program_side):
    if chart_side == program_side:
        return 0
    print(f"FAILED: {what}\n  chart   {chart_side}\n  program {program_side}")
    return 1


AS_JSON = (
    {"webhook.excludedNamespaces": []},
    {"webhook.queued": []},
    {"webhook.queued": ["apps/deployments", "batch/jobs", "batch/cronjobs", "example.org/trainings"]},
)


def main():
    failed = 0
    for settings in ((), ("webhook.aliases=true",), ("webhook.excludedNamespaces={kube-system,infra}",), *AS_JSON):
        rendered = chart.render(values=settings) if isinstance(settings, dict) else chart.render(*settings)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
            if settings:  # otherwise the program uses its own defaults, which must equal the chart's
                f.write(chart.one(rendered, "ConfigMap", "sluice")["data"]["webhook.yaml"])
                f.flush()
            text = subprocess.run(
                [sys.argv[1], "--print-policy", "manifests", *(["--config", f.name] if settings else [])],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
        printed = list(yaml.safe_load_all(text))
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            ours = {w["name"]: normal(w) for w in chart.one(rendered, kind, "sluice")["webhooks"]}
            theirs = {w["name"]: normal(w) for w in chart.one(printed, kind)["webhooks"]}
            failed += compare(f"{kind} {settings}: names", sorted(ours), sorted(theirs))
            for name in sorted(set(ours) & set(theirs)):
                for field in sorted(set(ours[name]) | set(theirs[name])):
                    failed += compare(f"{name} {field} {settings}", ours[name].get(field), theirs[name].get(field))
        policy = chart.one(rendered, "ValidatingAdmissionPolicy", "sluice-require-marker")["spec"]
        theirs = chart.one(printed, "ValidatingAdmissionPolicy")["spec"]
        for rule in theirs["matchConstraints"]["resourceRules"] + policy["matchConstraints"]["resourceRules"]:
            rule.setdefault("scope", "*")
        for rule in theirs["matchConstraints"]["resourceRules"]:
            rule["scope"] = "*"  # equal for pods, which are namespaced
        for field in sorted(set(policy) | set(theirs)):
            failed += compare(f"policy {field} {settings}", policy.get(field), theirs.get(field))
    print(f"FAILED: {failed}" if failed else "the chart and the program are equal")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
