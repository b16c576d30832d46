"""Claims on cards of one PCIe root, NUMA node or NVLink clique; product_dra_test.py runs these cases."""

import os
import pathlib

import product as p
from product_claims import SPACE, claim_template, documents, unscheduled, with_claim

# The cards' places: two cards share a PCIe root, two others a NUMA node, and two others an NVLink clique.
ROOTS, NUMA_NODES, CLIQUE_CARDS = ("20", "60", "20", "60"), (0, 1, 1, 0), 2
CARDS = len(ROOTS)
# An example with a constraint, a card that is full, and the cards that are chosen then with and without the constraint.
PLACES = {
    "two-cards.yaml": (0, {1, 3}, {1, 2}),
    "one-numa-node.yaml": (1, {0, 3}, {0, 2}),
    "one-nvlink-clique.yaml": (0, {2, 3}, {1, 2}),
}


def make_sysfs():
    """The PCI devices of the simulated cards, in a folder that the driver's container sees."""
    folder = pathlib.Path(os.environ["CLUSTER_STATE"]) / "node/sluice/sys"
    bus = folder / "bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    for card in range(CARDS):
        name = f"0000:{0x10 + card:02x}:00.0"
        device = folder / f"devices/pci0000:{ROOTS[card]}/{name}"
        device.mkdir(parents=True, exist_ok=True)
        (device / "numa_node").write_text(f"{NUMA_NODES[card]}\n")
        if not (bus / name).is_symlink():
            (bus / name).symlink_to(f"../../../devices/pci0000:{ROOTS[card]}/{name}")
    return folder


class Places:
    """Cases of product_dra_test.Claims, which has the helpers for claims and pods."""

    def cards_of(self, pod):
        """Indices of the cards that the pod's claims hold, by the order of the slice."""
        order = [d["name"] for d in self.devices()]
        claims = [
            c
            for c in p.get("-n", SPACE, "resourceclaims")["items"]
            if pod in [u["name"] for u in c.get("status", {}).get("reservedFor", [])]
        ]
        return {order.index(r["device"]) for c in claims for r in c["status"]["allocation"]["devices"]["results"]}

    def test_the_slice_says_where_the_cards_are(self):
        attributes = [d["attributes"] for d in self.devices()]
        self.assertEqual([a["numaNode"]["int"] for a in attributes], list(NUMA_NODES))
        roots = [a["resource.kubernetes.io/pcieRoot"]["string"] for a in attributes]
        self.assertEqual(roots, [f"pci0000:{root}" for root in ROOTS])
        cliques = [a["nvlinkClique"]["string"].rsplit(".", 1)[1] for a in attributes]
        self.assertEqual(cliques, [str(card // CLIQUE_CARDS) for card in range(CARDS)])

    def test_constraints_choose_cards_of_one_place(self):
        for file, (full, wanted, without) in PLACES.items():
            with self.subTest(file):
                filler = claim_template("filler", "130Gi")
                uuid = self.devices()[full]["attributes"]["uuid"]["string"]
                expression = f"device.attributes['sluice.dev'].uuid == '{uuid}'"
                request = filler["spec"]["spec"]["devices"]["requests"][0]["exactly"]
                request["selectors"] = [{"cel": {"expression": expression}}]
                self.create(filler)
                p.apply(with_claim(p.idle_pod("filler", {}), "filler"), SPACE)
                self.runs("filler")
                self.assertEqual(self.cards_of("filler"), {full})
                template, pod = documents(file)
                self.create(template, pod)
                name = pod["metadata"]["name"]
                self.runs(name)
                self.assertEqual(self.cards_of(name), wanted)
                # Without the constraint the first cards with room: it has decided.
                constraints = template["spec"]["spec"]["devices"]["constraints"]
                constraints[:] = [c for c in constraints if "matchAttribute" not in c]
                template["metadata"]["name"] = pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "free"
                pod["metadata"]["name"] = "free"
                self.create(template, pod)
                self.runs("free")
                self.assertEqual(self.cards_of("free"), without)
                self.tearDown()

    def test_the_charts_scheduler_scores_claims(self):
        """On one node nothing is to be scored: the extender may read claims, and its account is right."""
        self.create(claim_template("scored", "20Gi"))
        pod = with_claim(p.idle_pod("scored", {}), "scored")
        pod["spec"]["schedulerName"] = "sluice-scheduler"
        p.apply(pod, SPACE)
        self.runs("scored")
        found = p.get("-n", p.SPACE, "pods", "-l", "app.kubernetes.io/component=scheduler")["items"]
        path = f"/api/v1/namespaces/{p.SPACE}/pods/{found[0]['metadata']['name']}:9404/proxy/metrics"

        def figures():
            lines = [x.rsplit(" ", 1) for x in p.kubectl("get", "--raw", path).splitlines() if not x.startswith("#")]
            values = {name: float(value) for name, value in lines}
            names = ("claim_cards", "allocated_claims", "claim_free_gpus")
            return [round(values[f"sluice_extender_{name}"], 2) for name in names]

        # A hundredth of a card is the extender's unit.
        used = -(-100 * 20 * (1 << 30) // self.card_bytes()) / 100
        p.wait(30, "the extender's account", lambda: figures() == [CARDS, 1, round(CARDS - used, 2)])

    def test_a_constraint_that_no_card_meets_waits(self):
        template, pod = documents("two-cards.yaml")
        template["spec"]["spec"]["devices"]["constraints"][0]["matchAttribute"] = "sluice.dev/absent"
        self.create(template, pod)
        output = p.wait(60, "the scheduler's sentence", lambda: unscheduled(pod["metadata"]["name"]))
        self.assertIn("cannot allocate all claims", output)
