"""Every program and subcommand has --help. A wrong command line gives one line and exit status 2.

The line has the name, the value and the accepted values.
"""

import re
import subprocess
import unittest

import product as p

PROGRAMS = (
    "sluice",
    "kubectl-sluice",
    "sluice-agent",
    "sluice-device-plugin",
    "sluice-webhook",
    "sluice-extender",
    "sluice-replay",
    "sluice-trace",
)
# A wrong command line, and words that the message must have.
WRONG = {
    "sluice": ("no subcommand", "accepted: run, top"),
    "sluice frob": ("'frob'", "accepted: run, top"),
    "kubectl-sluice frob": ("'frob'", "accepted: top, status"),
    "sluice-trace frob": ("'frob'", "accepted: info, pack"),
    "sluice run": ("no program", "-- CMD"),
    "sluice run --fraction 0.5 true": ("'true'", "has no --", "-- CMD"),
    "sluice run --fraction abc -- true": ("--fraction", "'abc'", "0.01 to 1"),
    "sluice run --memory 4Gx -- true": ("--memory", "'4Gx'", "4Gi"),
    "sluice run --fraction 0.5 --memory 4Gi -- true": ("--memory", "--fraction", "one of the two"),
    "sluice run --log-level LOUD -- true": ("--log-level", "'LOUD'", "WARN"),
    "sluice run --gpu 0 -- true": ("--gpu", "'0'", "auto, sim"),
    "sluice top --interval nan": ("--interval", "nan"),
    "sluice simulate-cluster --generated 3 3 --until nan": ("--until", "nan"),
    "sluice-trace bound experiments/traces/decode.sltrace --budget-gib nan": ("--budget-gib", "nan"),
    "sluice-replay experiments/traces/decode.sltrace --host-pace nan": ("--host-pace", "nan"),
    "sluice admit -f docs/design/placement.svg": ("placement.svg", "accepted: maps with apiVersion"),
    "sluice status -o xml": ("-o", "'xml'", "text, json"),
    "sluice top --interval x": ("--interval", "x", "0.1"),
    "sluice replay experiments/traces/decode.sltrace --gpu sim --prefetch maybe": ("--prefetch", "'maybe'", "predict"),
    "sluice replay experiments/traces/decode.sltrace --gpu sim --memory 4Gi --fraction 0.5": (
        "--memory",
        "--fraction",
        "one of the two",
    ),
    "sluice admit -f pod.yaml -o xml": ("--output", "xml", "patch"),
    "sluice simulate-cluster": ("simulate-cluster", "--generated"),
    "sluice simulate-cluster --generated 3 3 --policy foo": ("--policy", "foo", "best-fit"),
    "kubectl-sluice set pod x": ("'x'", "key=value"),
    "sluice-agent --config /nonexistent": ("/nonexistent",),
    "sluice-device-plugin --config /nonexistent": ("/nonexistent",),
    "sluice-device-plugin --install-lib": ("--install-lib", "SRC DST"),
    "sluice-webhook --config /nonexistent": ("/nonexistent",),
    "sluice-webhook --workers 0": ("--workers", "0", "1 to 64"),
    "sluice-webhook --print-policy what": ("--print-policy", "what", "manifests"),
    "sluice-webhook --listen foo": ("--listen", "'foo'", "ADDRESS:PORT"),
    "sluice-extender --listen foo": ("listen", "foo", "ADDRESS:PORT"),
    "sluice-extender --config /nonexistent": ("/nonexistent",),
    # A folder instead of a file, as a ConfigMap that is mounted in the wrong place.
    "sluice-agent --check-config --config docs": ("docs", "Is a directory"),
    "sluice-device-plugin --check-config --config docs": ("docs", "Is a directory"),
    "sluice-webhook --check-config --config docs": ("docs", "Is a directory"),
    "sluice-extender --check-config --config docs": ("docs", "Is a directory"),
    "sluice-agent --check-config --config /dev/zero": ("/dev/zero", "is no plain file"),
    "sluice-extender --check-config --config /dev/zero": ("/dev/zero", "is no plain file"),
    "sluice-webhook --check-config --config /dev/zero": ("/dev/zero", "larger than 64 MiB"),
    "sluice-webhook --print-policy manifests --ca docs": ("--ca", "docs", "Is a directory"),
    "sluice-webhook --drain -1": ("--drain", "-1", "0 to 3600"),
    "sluice admit -f docs": ("docs", "Is a directory"),
    "sluice events --after -1": ("--after", "-1"),
    "sluice simulate-cluster --generated 3 3 --first-seed -1": ("--first-seed", "-1"),
    "sluice record --gpu sim -o /dev/null -- true": ("/dev/null", "no plain file", "accepted: a file"),
    "sluice replay experiments/traces/decode.sltrace --gpu sim --steps 1 --timeline docs": (
        "--timeline",
        "docs",
        "Is a directory",
    ),
    "sluice-trace bound experiments/traces/decode.sltrace --budget-gib x": ("--budget-gib", "x", "range"),
    "sluice-trace synth foo /tmp/x": ("KIND", "foo", "transformer"),
}
# A correct command line with an unusable file or address: also one line, and exit status 1.
UNUSABLE = {
    "sluice-extender --listen 127.0.0.1:0 --kubeconfig docs": ("docs", "Is a directory"),
    "sluice replay docs --gpu sim": ("docs", "Is a directory"),
    "sluice-replay docs": ("docs", "Is a directory"),
    "sluice-trace info docs": ("docs", "Is a directory"),
    "sluice-trace pack docs/design/placement.svg /tmp/sluice-no-trace": ("placement.svg", "not a sluice trace"),
    "sluice-trace interval experiments/traces/decode.sltrace frob frob": ("'frob'",),
    "sluice top --once --run-dir /nonexistent": ("/nonexistent/sluice.sock", "--run-dir"),
}


def call(words):
    program, *rest = words
    return subprocess.run(
        [p.BUILD / "bin" / program, *rest],
        cwd=p.ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def every_command():
    """[program] and [program, subcommand]."""
    for program in PROGRAMS:
        yield [program]
        _, _, listed = call([program, "--help"]).stdout.partition("\nSubcommands:\n")
        for name in re.findall(r"(?m)^  (\S+)", listed):
            yield [program, name]


class CommandLines(unittest.TestCase):
    def test_help(self):
        found = list(every_command())
        self.assertGreater(len(found), 30)
        for words in found:
            with self.subTest(words):
                result = call([*words, "--help"])
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn("\nUsage: ", result.stdout)

    def test_version(self):
        for program in PROGRAMS:
            with self.subTest(program):
                result = call([program, "--version"])
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertRegex(result.stdout, rf"^({program} )?{re.escape(p.VERSION)}\n$")

    def refused(self, words, *parts, status=2):
        with self.subTest(words):
            result = call(words)
            self.assertEqual(
                (result.returncode, result.stdout, result.stderr.count("\n")), (status, "", 1), result.stderr
            )
            self.assertTrue(result.stderr.startswith(words[0].replace("kubectl-", "") + ": "), result.stderr)
            self.assertEqual([x for x in parts if x not in result.stderr], [], result.stderr)

    def test_unknown_flags_are_refused(self):
        for words in every_command():
            self.refused([*words, "--frob"], "'--frob'", "accepted:")

    def test_a_full_disk_is_reported(self):
        for typed in (
            "sluice-webhook --print-policy manifests",
            "sluice-webhook --print-annotations",
            "sluice admit -f examples/half-a-gpu.yaml",
            "sluice-trace info experiments/traces/decode.sltrace",
            "sluice simulate-cluster --generated 3 3",
            "sluice-extender --help",
        ):
            program, *rest = typed.split()
            with self.subTest(typed), open("/dev/full", "w") as full:
                result = subprocess.run(
                    [p.BUILD / "bin" / program, *rest],
                    cwd=p.ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=60,
                )
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertTrue(result.stderr.endswith(f"{program}: stdout: No space left on device\n"), result.stderr)

    def test_unusable_arguments(self):
        for typed, parts in UNUSABLE.items():
            self.refused(typed.split(), *parts, status=1)

    def test_wrong_values_are_refused(self):
        for typed, parts in WRONG.items():
            self.refused(typed.split(), *parts)
