"""Shares of several cards on a node with two; product_test.py runs these cases."""

import json
import os

import product as p

PAIR = {"sluice.dev/gpu-fraction": "0.5", "sluice.dev/gpu-count": "2"}


class Several:
    """Cases of product_test.Product, which has the pods' helpers."""

    def shares(self, name):
        """Percent by card, as the agent serves the pod's container."""
        found = [a for a in p.agent_status().get("allocations", []) if a["pod"] == name]
        return {g["uuid"]: g["percent"] for g in found[0]["gpus"]} if found else {}

    def free_units(self):
        node = p.get("node", os.environ["CLUSTER_NODE"])
        return sorted(c["free"] for c in json.loads(node["metadata"]["annotations"]["sluice.dev/gpus"]))

    def test_a_part_of_each_of_two_cards(self):
        self.start("tensor", PAIR)
        pod = p.get("-n", self.space, "pod", "tensor")
        self.assertEqual(pod["spec"]["containers"][0]["resources"]["limits"]["sluice.dev/gpu-percent"], "100")
        p.wait(30, "the agent to know it", lambda: list(self.shares("tensor").values()) == [50, 50])
        self.assertEqual(len(self.inside("tensor", "bash", "-c", "ls /dev/nvidia[0-9]*").split()), 2)
        p.wait(30, "the node's annotation", lambda: self.free_units() == [50, 50])
        # A second one and nothing more: the sum of the node is used up.
        self.start("second", PAIR)
        p.wait(30, "no free units", lambda: self.free_units() == [0, 0])
        # Another size is of both cards, and grows as far as both have room.
        p.kubectl("-n", self.space, "delete", "pod", "second", "--force", "--grace-period=0")
        p.wait(60, "the units of the pod that ended", lambda: self.free_units() == [50, 50])
        self.start("small", {"sluice.dev/gpu-fraction": "0.2"})
        self.resize("tensor", "0.9")
        p.wait(30, "growth on both", lambda: list(self.shares("tensor").values()) == [80, 80])
        p.wait(30, "the pod's answer", lambda: self.granted("tensor") == {"percent": 80, "requested": 90})
        p.wait(30, "the node's annotation", lambda: self.free_units() == [0, 20])

    def test_parts_of_two_cards_beside_a_whole_one(self):
        # Equal units, and kubelet does not say for which pod it asks.
        for round_ in range(3):
            whole, pair = f"whole-{round_}", f"pair-{round_}"
            p.apply(p.idle_pod(pair, {**PAIR, "sluice.dev/gpu-fraction": "0.3"}), self.space)
            p.apply(p.idle_pod(whole, {"sluice.dev/gpu-fraction": "0.6"}), self.space)
            for name in (whole, pair):
                p.wait(120, f"{name} to run", lambda name=name: p.phase(name, self.space) == "Running")
            p.wait(30, "the whole part", lambda w=whole: list(self.shares(w).values()) == [60])
            p.wait(30, "both parts", lambda n=pair: list(self.shares(n).values()) == [30, 30])
            p.kubectl("-n", self.space, "delete", "pod", whole, pair, "--force", "--grace-period=0")
            p.wait(60, "all units", lambda: self.free_units() == [100, 100])

    def test_all_cards_or_none(self):
        self.start("big", {"sluice.dev/gpu-fraction": "0.6"})
        # The sum has room, one of the cards does not.
        p.apply(p.idle_pod("tensor", PAIR), self.space)
        p.wait(120, "the refusal", lambda: p.phase("tensor", self.space) == "Failed")
        status = p.get("-n", self.space, "pod", "tensor")["status"]
        self.assertIn("50 percent of each of 2 GPUs", status["message"])
        p.wait(30, "nothing is held", lambda: self.free_units() == [40, 100])
        self.start("fits", {"sluice.dev/gpu-fraction": "0.4", "sluice.dev/gpu-count": "2"})
        p.wait(30, "both parts", lambda: list(self.shares("fits").values()) == [40, 40])
        for wrong, output in {"0": "1 to 16", "x": "1 to 16", "4": "at most 2"}.items():
            result = p.apply(p.idle_pod("wrong", {**PAIR, "sluice.dev/gpu-count": wrong}), self.space, check=False)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(output, result.stderr)
