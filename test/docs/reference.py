"""Compares the documents' lists with the programs, both ways.

Variables, configuration keys, metrics, annotations, messages, links, subcommands.
"""

import fnmatch
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import product as p

PAGE = p.ROOT / "docs/operate/configuration.md"
METRICS = {
    "agent": ["agent/metrics.cc", "proto/counters.def"],
    "plugin, webhook and extender": [
        "deviceplugin/metrics.cc",
        "webhook/server/metrics.cc",
        "scheduler/extender/extender.cc",
    ],
}
PARTS = (
    "agent",
    "cli",
    "common",
    "deviceplugin",
    "experiments",
    "hooklib",
    "kube",
    "proto",
    "scheduler",
    "simgpu",
    "trace",
    "webhook",
)
FOLDERS = [p.ROOT / name for name in (*PARTS, "charts", "cmake", "docs", "examples", "manifests", "scripts", "test")]
# Messages of Kubernetes, and of gcc's AddressSanitizer.
FOREIGN = (
    "had untolerated taint {nvidia.com/gpu",
    "insufficient quota to match these scopes: [{PriorityClass",
    "ASan runtime does not come first in initial library list",
    "nodes are available: Insufficient sluice.dev/gpu-percent",
    "UnexpectedAdmissionError",
    "allocatable",
    "sluice.dev/gpu-percent",
    "type: Container",
)
# All documents but docs/lab: its dated records name variables and files of their day.
PAGES = [
    f
    for f in (p.ROOT / "README.md", *sorted((p.ROOT / "docs").rglob("*.md")))
    if not f.is_relative_to(p.ROOT / "docs" / "lab")
]
# Settings are variables too; a generated header holds their names.
SETTINGS = (p.ROOT / "proto/settings.def").read_text()
# Names in documents that are no variables of a program.
NOT_OURS = re.compile(r"SLUICE_(BUILD_DIR|BENCH|TARGETS)")


def rows(text, heading=None):
    """Names between backticks in the first cells of the tables below a heading, or of all tables."""
    if heading is not None:
        text = re.search(rf"(?ms)^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", text).group(1)
    return [
        name
        for line in text.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]


def accepted(program, yaml):
    """The keys that a daemon lists when it refuses an unknown one."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml)
        file.flush()
        result = subprocess.run(
            [p.BUILD / "bin" / program, "--config", file.name, "--check-config"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    return set(re.search(r"(?:accepted: |accepted are |known are )(.*)", result.stderr).group(1).split(", "))


class Reference(unittest.TestCase):
    maxDiff = None

    def test_the_keys_of_the_daemons(self):
        for program in ("sluice-agent", "sluice-device-plugin", "sluice-webhook", "sluice-extender"):
            named = rows(PAGE.read_text(), program)
            self.assertEqual(len(named), len(set(named)), program)
            self.assertEqual({k.split(".")[0] for k in named}, accepted(program, "frob: 1\n"), program)
            for section in sorted({k.split(".")[0] for k in named if "." in k}):
                with self.subTest(f"{program} {section}"):
                    self.assertEqual(
                        {k.split(".")[1] for k in named if k.startswith(section + ".")},
                        accepted(program, section + ": {frob: 1}\n"),
                    )

    def test_the_variables(self):
        named = {*rows(PAGE.read_text(), "Variables of a container"), *re.findall(r"`(ULMS_\w+)`", PAGE.read_text())}
        settings = set(re.findall(r"`(SLUICE_\w+)` \|$", (p.ROOT / "docs/operate/annotations.md").read_text(), re.M))
        self.assertEqual(len(settings), 12)
        listed = (p.ROOT / "proto/sluice/names.h").read_text() + SETTINGS
        self.assertEqual(named | settings, set(re.findall(r'"((?:SLUICE|ULMS)_[A-Z_]+)"', listed)))

    def test_documents_name_only_variables_that_exist(self):
        read = set(re.findall(r'"(SLUICE_[A-Z_]+)"', SETTINGS))
        for top in PARTS:
            for file in (p.ROOT / top).rglob("*.[ch]*"):
                read |= set(re.findall(r'"(SLUICE_[A-Z_]+)"', file.read_text()))
        for file in PAGES:
            shown = set(re.findall(r"\b(SLUICE_[A-Z_]+)\b", file.read_text()))
            self.assertEqual({v for v in shown - read if not NOT_OURS.fullmatch(v)}, set(), file.name)

    def test_a_user_may_set_them(self):
        table = PAGE.read_text().split("| belongs to the allocation")[0]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x", "annotations": {"sluice.dev/gpu-fraction": "0.5"}},
            "spec": {
                "containers": [
                    {
                        "name": "app",
                        "image": "a",
                        "env": [{"name": v, "value": "1"} for v in rows(table, "Variables of a container")],
                    }
                ]
            },
        }
        result = subprocess.run(
            [p.BUILD / "bin/sluice", "admit", "-f", "-"],
            input=json.dumps(pod),
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("warning", result.stderr)

    def test_named_sources_exist(self):
        """By file name: a README must not outlive a file."""
        pages = [
            f
            for f in (*p.ROOT.glob("*.md"), *(f for d in FOLDERS for f in d.rglob("*.md")))
            if not f.is_relative_to(p.ROOT / "docs" / "lab")
        ]  # dated records
        # cmake writes some files into the build folder from *.in.
        there = {f.name.removesuffix(".in") for d in FOLDERS for f in d.rglob("*")}
        there |= {"cuda.h", "cudaTypedefs.h", "nvml.h"}
        there |= {
            "uvm_va_block.h",
            "uvm_pmm_gpu.h",
            "uvm_va_range.h",
            "uvm_perf_thrashing.c",
            "uvm_gpu_replayable_faults.c",
        }  # the driver's
        for page in pages:
            for name in re.findall(r"`([\w./*-]+\.(?:cc|h|c|S|py|cu|def|sh|cmake|go|proto))`", page.read_text()):
                self.assertTrue(fnmatch.filter(there, pathlib.Path(name).name), f"{page}: {name}")

    def test_shown_annotations_are_accepted(self):
        """Everywhere but in annotations.md, which shows denied values and has a test of its own."""
        shown = {
            m
            for f in PAGES
            if f.name != "annotations.md"
            for m in re.findall(r"(?m)(?<![\w.-])sluice\.dev/([a-z-]+): *\"?([\w.]+)", f.read_text())
        }
        self.assertGreater(len(shown), 5)
        for key, value in sorted(shown):
            if key in ("gpu-percent", "placement", "injected"):
                continue
            annotations = {f"sluice.dev/{key}": value}
            if key not in ("gpu-fraction", "gpu-memory", "inject"):
                annotations["sluice.dev/gpu-fraction"] = "0.5"
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "x", "annotations": annotations},
                "spec": {"containers": [{"name": "app", "image": "a"}]},
            }
            result = subprocess.run(
                [p.BUILD / "bin/sluice", "admit", "-f", "-", "--gpu-memory", "80Gi"],
                input=json.dumps(pod),
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertEqual(result.returncode, 0, f"{key}: {result.stderr}")

    def test_the_metrics(self):
        page = (p.ROOT / "docs/operate/metrics.md").read_text()
        for heading, files in METRICS.items():
            told = {
                m
                for file in files
                for line in (p.ROOT / file).read_text().splitlines()
                for m in re.findall(r'"(?:# HELP )?(sluice_[a-z_]+)', line)
            }
            self.assertEqual(set(rows(page, heading[0].upper() + heading[1:])), told, heading)

    def test_quoted_messages_are_in_the_sources(self):
        """The quotes of troubleshooting.md."""
        sources = "".join(
            f.read_text() for top in PARTS for suffix in (".c", ".cc", ".h") for f in (p.ROOT / top).rglob(f"*{suffix}")
        )
        sources = re.sub(
            r'"\s+"|" *SLUICE_RESOURCE *"|\\', lambda m: "sluice.dev/gpu-percent" if "RESOURCE" in m[0] else "", sources
        )
        quoted = 0
        for line in (p.ROOT / "docs/operate/troubleshooting.md").read_text().splitlines():
            for message in re.findall(r'[`"]([^`"]+)[`"]', line.split("|")[1] if line.startswith("| ") else ""):
                for part in re.split(r"…|\.\.\.|%|\d+", message):
                    part = part.strip(" ,.:/")
                    if len(part) < 8 or part in FOREIGN:
                        continue
                    quoted += 1
                    self.assertIn(part, sources, line)
        self.assertGreater(quoted, 12)

    def test_the_keys_of_the_exit_line(self):
        """The exit line of the README, its tables and the tree name only keys that the engine prints."""
        source = (p.ROOT / "hooklib/engine/observe/diagnostics.cc").read_text().partition("void LogSummary(")[2]
        printed = set(re.findall(r"\b(\w+)=%", source))
        metrics = re.findall(r'"sluice_(\w+)"', (p.ROOT / "proto/counters.def").read_text())
        others = printed - {"pid", "gpu"}
        printed |= {name.removesuffix("_total") for name in metrics}
        self.assertIn("fault_bytes_source", printed)
        readme = (p.ROOT / "README.md").read_text()
        line = re.search(r"(?s)sluice: exit .*?\n\n", readme).group()
        shown = set(re.findall(r"\b(\w+)=", line))
        self.assertGreater(len(shown), 8)
        tuning = (p.ROOT / "docs/operate/tuning.md").read_text()
        for text in (readme, tuning):
            shown |= set(re.findall(r"\b(?!sluice_)(\w+_(?:bytes|percent|launches|seconds))\b", text))
        self.assertEqual(shown - printed, set())
        explained = set(rows(tuning, "Keys of the line"))
        self.assertEqual(explained - printed, set())
        self.assertEqual(others - explained, set(), "no page of metrics explains these")

    def test_the_figures_of_the_readme(self):
        """Each row of README's table of times is a row of benchmarks.md, rounded."""
        number = r"\| ([\d.,]+) "
        readme = re.findall(rf"^\|[^|]+{number}{number}{number}\|$", (p.ROOT / "README.md").read_text(), re.M)
        text = (p.ROOT / "docs/benchmarks.md").read_text()
        # Figure, baseline (with its name, where it is another than that of the table) and ratio.
        rows = re.findall(rf"^\|[^|]+{number}\| ([\d.]+)(?:, faults)? {number}\|", text, re.M)
        self.assertGreater(len(rows), 5)
        rounded = lambda value, as_in: f"{float(value):.{len(as_in.partition('.')[2])}f}"
        self.assertEqual(len(readme), 5)
        for faults, sluice, ratio in readme:
            shown = (sluice, faults, ratio)
            found = [tuple(rounded(v, s) for v, s in zip(row, shown, strict=True)) for row in rows]
            self.assertIn(shown, found, "README.md: figure, baseline, ratio")

    def test_links_lead_to_files_and_headings(self):
        """Headings are compared as GitHub's anchors."""
        for page in [*p.ROOT.glob("*.md"), *(f for d in FOLDERS for f in d.rglob("*.md"))]:
            for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                if "://" in target:
                    continue
                path, _, anchor = target.partition("#")
                to = (page.parent / path).resolve() if path else page
                with self.subTest(f"{page.relative_to(p.ROOT)}: {target}"):
                    self.assertTrue(to.exists())
                    headings = re.findall(r"(?m)^#+ (.*)$", to.read_text()) if anchor else []
                    self.assertTrue(
                        not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]
                    )

    def test_the_paths(self):
        files = {
            "agent": "agent/metrics_server.cc",
            "device plugin": "deviceplugin/probe_server.cc",
            "webhook": "webhook/server/service.cc",
            "extender": "scheduler/extender/extender_server.cc",
        }
        page = (p.ROOT / "docs/operate/metrics.md").read_text()
        for part, file in files.items():
            row = re.search(rf"(?m)^\| {part} \|.*$", page).group()
            served = set(re.findall(r'(?:Get\(|Serve\(|context_, )"(/[a-z.]+)"', (p.ROOT / file).read_text()))
            self.assertEqual(set(re.findall(r"`(/[a-z.]+)`", row)), served, part)

    def test_every_subcommand_is_shown(self):
        text = "".join(f.read_text() for f in PAGES)
        for program in ("sluice", "sluice-trace"):
            help_text = subprocess.run(
                [p.BUILD / "bin" / program, "--help"], capture_output=True, text=True, timeout=60
            ).stdout
            for name in re.findall(r"(?m)^  (\S+)", help_text.partition("\nSubcommands:\n")[2]):
                self.assertRegex(text, rf"{program} {name}\b|`(\w+`, `)*{name}`", f"{program} {name}")
