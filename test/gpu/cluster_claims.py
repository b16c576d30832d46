"""Rows of test/gpu/cluster: the DRA driver in the device plugin's place."""

import cluster_objects as c
import exit_line
import product as p
from cluster_faults import SPACE


class ClaimRows:
    """Of Rows, which starts pods and adds lines."""

    def claims(self):
        """The chart's `dra.enabled`: the webhook makes a claim of the pod's annotation."""
        c.install(self.work, "--set", "dra.enabled=true", units=False)
        try:
            cards = lambda: [d for s in p.get("resourceslices")["items"] for d in s["spec"].get("devices", [])]
            p.wait(60, "the card in the node's slice", cards)
            p.wait(60, "no units", lambda: p.offered() == 0)
            webhooks = lambda: p.get("-n", p.SPACE, "pods", "-l", "app.kubernetes.io/component=webhook")["items"]
            p.wait(60, "the old webhooks, which ask for units, to end", lambda: len(webhooks()) == 2)
            self.start("claimed", self.work.small(60), "0.1", self.work.small_managed)
            p.wait(40, "claimed to be hooked", lambda: (c.allocation("claimed") or {}).get("hook_state") == "attached")
            claims = p.get("-n", SPACE, "resourceclaims")["items"]
            allocated = [x for x in claims if x.get("status", {}).get("allocation")]
            text = self.wait_end("claimed")
            result = self.work.result(text)
            self.add(
                "DRA in place of the device plugin",
                "a claim from the annotation; values as bare, an exit line",
                f"{len(cards())} card in the slice, {len(allocated)} claim allocated, "
                f"{p.phase('claimed', SPACE)}, {self.compared(result, self.hosted['small'])}, "
                f"{len(exit_line.parse(text))} exit line",
                len(allocated) == 1 and result.values == self.hosted["small"].values and exit_line.attached(text),
            )
            p.kubectl("-n", SPACE, "delete", "pod", "claimed", "--force", "--grace-period=0")
        finally:
            c.install(self.work)
