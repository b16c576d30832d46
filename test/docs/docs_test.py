#!/usr/bin/python3
"""A test runs every command of README.md and docs/, or the document says why none can: docs_test.py [--cluster].

Without an argument it compares the documents with commands.py and runs the commands that need no cluster. With
--cluster it runs those of the local cluster, which must be up.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))
import command_lines  # noqa: E402  (found beside this file)
import commands  # noqa: E402
import documents  # noqa: E402
import product as p  # noqa: E402
import reference  # noqa: E402

# Commands of measurements and for contributors. They are not run, but their programs must exist.
TOOLS = ("docs/benchmarks.md", "docs/design/driver.md", "CONTRIBUTING.md")


def short(text):
    """`build/bin/sluice` and `sluice` are one program."""
    return text.replace("build/bin/sluice", "sluice")


def known():
    """Commands with a test, and commands that a block marks as untestable."""
    marked = [c.text for c in documents.all_commands() if c.block and any(m in c.comment for m in commands.MARKS)]
    return {**commands.MACHINE, **commands.CLUSTER, **commands.ELSEWHERE, **dict.fromkeys(marked)}


def complaint(command, listed):
    """The reason why a command of a document is not accounted for; None if it is."""
    if any(mark in command.comment for mark in commands.MARKS):
        return None
    text = command.text if command.text in listed else short(command.text)
    # Within a sentence the beginning of a command is enough.
    if text in listed or (not command.block and any((k + " ").startswith(text + " ") for k in listed)):
        return None
    return (
        f"{command}: no test runs it; accepted: an entry in test/docs/commands.py, or behind the command one of: "
        + ", ".join("# " + m for m in commands.MARKS)
    )


class Documents(unittest.TestCase):
    maxDiff = None

    def test_every_command_is_accounted_for(self):
        missing = [complaint(c, known()) for c in documents.all_commands() if c.where not in TOOLS]
        self.assertEqual([m for m in missing if m], [])

    def test_the_tools_exist(self):
        for command in documents.all_commands():
            if command.where in TOOLS and command.text.split()[0].startswith(("build/", "test/", "scripts/")):
                program = re.sub(r"^build/", str(p.BUILD) + "/", command.text.split()[0])
                self.assertTrue((p.ROOT / program).exists(), f"{command}: {program} is not there")

    def test_shown_versions_are_current(self):
        for name in documents.FILES:
            for version in re.findall(r"sluice(?:-image)?[-:](\d+\.\d+\.\d+)", (p.ROOT / name).read_text()):
                self.assertEqual(version, p.VERSION, name)

    def test_every_entry_is_shown_by_a_document(self):
        shown = [short(c.text) for c in documents.all_commands()] + [c.text for c in documents.all_commands()]
        # Steps between the commands on the cluster; no document shows them.
        helpers = {
            "kubectl delete namespace sluice-system",
            "helm rollback sluice -n sluice-system",
            "helm uninstall sluice -n sluice-system",
            "helm upgrade sluice charts/sluice -n sluice-system --reuse-values --set scheduler.mode=cluster",
        }
        self.assertEqual([k for k in known() if k not in shown and k not in helpers], [])

    def test_other_tests_run_their_commands(self):
        for text, by in commands.ELSEWHERE.items():
            with self.subTest(text):
                self.assertTrue(by.text in (p.ROOT / by.file).read_text(), f"{by.file} does not hold {by.text!r}")

    def test_this_test_can_fail(self):
        page = (
            "Text with `sluice frobnicate --all`.\n\n    helm install sluice charts/other -n x\n    # no command\n"
            "    kubectl get gpus   # needs a GPU\n\n"
            "```console\n$ any-program --at all\n```\n\n```\nsluice: exit pid 1\n```\n\n    budget: 4\n"
        )
        found = documents.commands_in("page.md", page)
        self.assertEqual(
            [(c.line, c.text) for c in found],
            [
                (1, "sluice frobnicate --all"),
                (3, "helm install sluice charts/other -n x"),
                (5, "kubectl get gpus"),
                (8, "any-program --at all"),
            ],
        )
        self.assertEqual([bool(complaint(c, known())) for c in found], [True, True, False, True])
        # The parser finds commands at all.
        self.assertGreater(len(documents.all_commands()), 60)


class Typed(unittest.TestCase):
    """Runs a table of commands in order, in the repository's folder, as a reader types them."""

    table, words = {}, {}

    def run_all(self):
        for text, run in self.table.items():
            typed = text
            for old, new in run.where.items():
                self.assertIn(old, typed)
                typed = typed.replace(old, new)
            typed = f"{typed} {run.more}".replace("registry.example", "sluice.test")
            for word, value in self.words.items():
                typed = typed.replace("{" + word + "}", str(value))
            with self.subTest(text):
                print("$ " + typed, flush=True)
                self.before(text)
                result = subprocess.run(
                    ["bash", "-c", typed],
                    cwd=p.ROOT,
                    env=self.environment(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=run.seconds,
                )
                self.assertEqual(result.returncode, run.status, result.stdout)
                self.assertIn(run.says, result.stdout)

    def before(self, text):
        pass

    def environment(self):
        return {**os.environ, "PATH": f"{p.BUILD}/bin:{os.environ['PATH']}"}


class OnAnyMachine(Typed):
    table = commands.MACHINE

    def environment(self):
        clean = {
            k: v
            for k, v in super().environment().items()
            if not k.startswith(("SLUICE_", "SIMGPU_", "LD_", "KUBECONFIG"))
        }
        # A GPU for programs that look for one themselves; `--gpu sim` brings its own.
        return (
            {**clean, "LD_LIBRARY_PATH": str(p.BUILD / "lib/simgpu"), "SIMGPU_PROFILE": "card-8g"}
            if self.bare
            else clean
        )

    def before(self, text):
        self.bare = text.startswith(("sluice-replay", "sluice record"))

    def test_they_work(self):
        with tempfile.TemporaryDirectory(prefix="sluice-docs.") as folder:
            self.words = {"folder": folder, "here": HERE, "root": p.ROOT, "build": p.BUILD}
            # The file that placement.md shows, and nodes and pods of a small cluster.
            shown = re.search(
                r"\n    # extender.yaml;.*\n((?:    .+\n)+)", (p.ROOT / "docs/operate/placement.md").read_text()
            ).group(1)
            pathlib.Path(folder, "extender.yaml").write_text("".join(line[4:] + "\n" for line in shown.splitlines()))
            subprocess.run(
                [p.BUILD / "bin/sluice", "simulate-cluster", "--generated", "40", "300", "--write", folder],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            self.run_all()


class OnTheCluster(Typed):
    table = commands.CLUSTER

    def remove(self):
        p.run(p.CLUSTER, "helm", "uninstall", "sluice", "-n", p.SPACE, "--wait", check=False)
        p.kubectl("delete", "namespace", p.SPACE, "--wait=true", check=False)

    def before(self, text):
        if text.startswith("sha256sum"):
            p.run(p.ROOT / "scripts/release", "--built", p.BUILD, self.words["folder"] / "release")
        if "--create-namespace" in text:
            self.remove()
        if text.startswith(("kubectl get nodes -o custom", "helm test")):
            p.wait(120, "the node to offer units", lambda: p.offered() == 200)
        if text.startswith("kubectl -n sluice-system get pods"):
            p.kubectl(
                "-n",
                p.SPACE,
                "wait",
                "--for=condition=Ready",
                "pods",
                "-l",
                "app.kubernetes.io/component=node",
                "--timeout=120s",
            )
        if text.startswith("kubectl sluice set"):
            p.wait(120, "the pod to run", lambda: p.phase("half-a-gpu", "default") == "Running")
        if text.startswith("helm upgrade"):
            p.kubectl("delete", "pod", "half-a-gpu", "--force", "--grace-period=0", check=False)

    def test_they_work(self):
        state = pathlib.Path(os.environ["CLUSTER_STATE"])
        folder = state / "images"
        folder.mkdir(exist_ok=True)
        p.run(p.CLUSTER, "gpus", p.BUILD, "two-gpu")
        p.run(p.CLUSTER, "base")
        p.scheduler_image()
        example = json.loads(
            p.run(
                "kubectl", "create", "--dry-run=client", "-o", "json", "-f", p.ROOT / "examples/half-a-gpu.yaml"
            ).stdout
        )
        example["spec"]["containers"] = p.idle_pod("", {})["spec"]["containers"]
        (folder / "pod.yaml").write_text(json.dumps(example))
        self.words = {
            "folder": folder,
            "build": p.BUILD,
            "version": p.VERSION,
            "containerd": os.environ["CLUSTER_CONTAINERD"],
            "simulated": " ".join(p.values()),
        }
        try:
            self.run_all()
        finally:
            p.kubectl("delete", "pod", "half-a-gpu", "--force", "--grace-period=0", check=False)
            self.remove()
            p.kubectl("annotate", "nodes", "--all", "sluice.dev/gpus-", check=False)


def load_tests(loader, tests, pattern):
    chosen = (
        [OnTheCluster] if on_cluster else [Documents, reference.Reference, command_lines.CommandLines, OnAnyMachine]
    )
    return unittest.TestSuite(loader.loadTestsFromTestCase(c) for c in chosen)


if __name__ == "__main__":
    on_cluster = "--cluster" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--cluster"]
    if on_cluster:
        p.require()
    unittest.main()
