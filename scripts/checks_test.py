#!/usr/bin/env python3
"""The checks of scripts/ find faults: each is run on a small repository with a fault of each kind, and without."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent


class Checks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "scripts").mkdir()
        for path in [*SCRIPTS.glob("*.py"), SCRIPTS / "vocabulary.txt", SCRIPTS / "api_page"]:
            shutil.copy(path, self.root / "scripts")
        subprocess.run(["git", "init", "-q", self.root], check=True)
        (self.root / ".gitignore").write_text("/scripts/\n")
        self.write("hooklib/memory/chunk.h", "struct Chunk {\n  int base = 0;\n  bool resident = false;\n};\n")
        self.write("agent/fine.cc", '// Evicts chunks.\nconst char* text = "evicted";\n')

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def run_check(self, *command):
        output = subprocess.run(
            [sys.executable, self.root / "scripts" / command[0], *command[1:]],
            cwd=self.root,
            capture_output=True,
            text=True,
        )
        return output.returncode, output.stdout + output.stderr

    def finds(self, command, *texts):
        status, output = self.run_check(*command)
        self.assertEqual(status, 1, output)
        for text in texts:
            self.assertIn(text, output)

    def passes(self, *command):
        status, output = self.run_check(*command)
        self.assertEqual(status, 0, output)

    def test_a_clean_tree_passes(self):
        self.write(
            "README.md", "# Title\n\nsluice evicts chunks. See [the agent](agent/fine.cc) and [above](#title).\n"
        )
        for check in ("vocabulary.py", "prose.py", "lines.py", "links.py", "layering.py", "locks.py", "structure.py"):
            with self.subTest(check):
                self.passes(check)

    def test_vocabulary(self):
        self.write(
            "hooklib/policy/evict.cc",
            """\
            // A chunk that was sent
            // away is kept. vocabulary is checked across lines.
            void SendAway();
            const char* kText = "chunks sent away";
            constexpr int kMost = 3;
            """,
        )
        self.write("docs/page.md", "Chunks that were sent away.\n")
        self.write("docs/lab/old.md", "Chunks that were sent away.\n")
        self.finds(
            ["vocabulary.py"],
            "hooklib/policy/evict.cc:1: 'sent away': evict",
            "hooklib/policy/evict.cc:3: 'SendAway': evict",
            "hooklib/policy/evict.cc:4: 'sent away'",
            "hooklib/policy/evict.cc:5: 'kMost': kMax<Noun>",
            "docs/page.md:1",
            "5 retired words",
        )

    def test_a_word_that_must_stay(self):
        self.write("hooklib/a.cc", "void SendAway();  // vocabulary: allow, the driver's own name\n")
        self.passes("vocabulary.py")

    def test_a_rule_holds_in_its_folders_only(self):
        self.write("scheduler/a.cc", "// The promise of a card.\n")
        self.finds(["vocabulary.py"], "scheduler/a.cc:1: 'promise': reservation")
        (self.root / "scheduler/a.cc").unlink()
        self.write("webhook/a.cc", "#include <future>\nstd::promise<int> done;  // The promise of a value.\n")
        self.passes("vocabulary.py")

    def test_retired_words_of_the_chart_and_the_simulator(self):
        self.write("charts/a.json", '{"title": "Called back, not given back"}\n')
        self.write("simgpu/a.cc", '// Memory that is accessed in place.\nvoid f() { Span(card, "in place"); }\n')
        self.write("hooklib/a.cc", "// A duplicate leaves for less.\nconstexpr int kSoonMs = 20;\nint leaves = 0;\n")
        self.finds(
            ["vocabulary.py"],
            "charts/a.json:1: 'Called back': reclaim",
            "simgpu/a.cc:1: 'accessed in place': used remotely",
            "simgpu/a.cc:2: 'in place': remote access",
            "hooklib/a.cc:1: 'duplicate leaves'",
            "hooklib/a.cc:2: 'kSoonMs'",
            "hooklib/a.cc:3: 'leaves': evictions",
            "6 retired words",
        )
        self.write("charts/a.json", '{"title": "Overdue"}\n')
        self.write("simgpu/a.cc", "// A library is replaced in place.\n")
        self.write("hooklib/a.cc", "// It leaves the GPU. It leaves to demand faults the rest.\nint evictions = 0;\n")
        self.passes("vocabulary.py")

    def test_a_wrong_rule_is_named(self):
        with (self.root / "scripts/vocabulary.txt").open("a") as rules:
            rules.write("code  (unclosed  => nothing\n")
        status, output = self.run_check("vocabulary.py")
        self.assertEqual(status, 1)
        self.assertRegex(output, r"vocabulary.txt:\d+: .*a rule is WHERE")

    def test_headless_clauses(self):
        clauses = "// What leaves is chosen by who needs it.\nint a;\n// Of what it names, some is there.\nint b;\n"
        self.write("kube/a.cc", clauses)
        self.finds(["prose.py"], "kube: 3 headless clauses")
        self.finds(["prose.py", "--list", "kube"], "kube/a.cc:1: headless", "kube/a.cc:3: headless")
        self.write("kube/a.cc", "// What is a chunk? The unit of residency.\nint a;\n")
        self.passes("prose.py")

    def test_headless_clauses_of_tests(self):
        headless = "wh" + "at"
        clauses = f"// It evicts {headless} it needs.\nint a;\n// It drops {headless} is freed.\nint b;\n"
        self.write("test/unit/a.cc", clauses)
        self.finds(["prose.py"], "test: 2 headless clauses")

    def test_headless_clauses_that_are_objects(self):
        objects = "// It drops what nobody needs.\nint a;\n// `Size` holds what the card has.\nint b;\n"
        self.write("kube/a.cc", objects + "// The cards less what the claims take; it asks who serves.\nint c;\n")
        self.finds(["prose.py"], "kube: 4 headless clauses")
        self.finds(["prose.py", "--list", "kube"], "kube/a.cc:1: headless", "kube/a.cc:3: headless")
        fine = "// It says which GPU it drops. The table shows who enforces what. A user who asks gets what share?\n"
        self.write("kube/a.cc", fine + "int a;\n// It knows what kind of card it is, and serves all who ask.\nint b;\n")
        self.passes("prose.py")

    def test_long_sentences(self):
        self.write("docs/page.md", "Word " * 30 + "end.\n")
        self.finds(["prose.py"], "docs: 31.0 words a sentence")
        # The cells of a table are no sentences.
        self.write("docs/page.md", "| a | b |\n|---|---|\n| " + "Word " * 30 + "| b |\n\nA short sentence is here.\n")
        self.passes("prose.py")

    def test_lines(self):
        self.write("agent/long.cc", "int x;\n" * 401)
        self.write("agent/wide.py", "x = '" + "y" * 130 + "'\n")
        self.write("test/deviceplugin/main.go", "package main\n" * 401)
        self.write("agent/list.def", "ROW(x)\n" * 500)
        longer = ("agent/long.cc: 401 lines", "test/deviceplugin/main.go: 401 lines")
        self.finds(["lines.py"], *longer, "agent/wide.py:1: 136 columns", "3 too long")

    def test_stale_pictures(self):
        table = "| picture | parts |\n|---|---|\n"
        table += "| `dashboard.png` | GPUs; Lent |\n| `timeline.png` | faults; stream |\n"
        table += "| `top.svg` | CONTAINER; HOOK |\n| `working-set.png` | Lent |\n"
        self.write("docs/pictures/README.md", table + "\n## More\n")
        self.write("docs/pictures/top.svg", '<text x="1">CONTAINER  HOOK</text>\n')
        self.write("charts/sluice/files/dashboard.json", '{"panels": [{"title": "GPUs"}, {"title": "Lent"}]}\n')
        views = 'std::string TopText() {\n  Table table({"CONTAINER", ">HOOK"});\n}\n'
        self.write("cli/views.cc", views)
        span = 'void f() { timeline_.Span(card, "faults", "fault", t); }\n'
        self.write("simgpu/core/a.cc", span)
        self.passes("picture_parts.py")
        self.write("charts/sluice/files/dashboard.json", '{"panels": [{"title": "GPUs"}, {"title": "Overdue"}]}\n')
        self.write("cli/views.cc", views.replace('">HOOK"', '">HOOK", ">PEAK"'))
        self.write("simgpu/core/a.cc", span.replace("faults", "remote"))
        self.finds(
            ["picture_parts.py"],
            "dashboard.png lacks ['Overdue'] and has the retired ['Lent']",
            "top.svg lacks ['PEAK']",
            "top.svg: it shows the columns CONTAINER HOOK",
            "working-set.png has the retired 'Lent'",
            "timeline.png has the retired 'faults'",
            "5 faults",
        )

    def test_subjects_of_commits(self):
        def commit(subject):
            run = ["git", "-C", self.root, "-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run([*run, "commit", "-q", "--allow-empty", "-m", subject, "-m", "Why."], check=True)
            return subprocess.check_output([*run, "rev-parse", "HEAD"], text=True).strip()

        first, fine = commit("w" * 73), commit("ü" * 72)
        long = commit("Evict " * 13)
        self.passes("subjects.py", f"{first}..{fine}")
        self.finds(["subjects.py", f"{first}..{long}"], "77 characters; 1 to 72", "2 commits, 1 faults")
        self.passes("subjects.py", f"{'0' * 40}..{fine}")  # a new branch
        self.finds(["subjects.py", f"{'0' * 40}..{long}"], "1 commits, 1 faults")
        self.write("message", "x" * 73 + "\n\nWhy.\n")
        self.finds(["subjects.py", "--message", "message"], "the message: 73 characters")
        self.write("message", "\nWhy.\n")
        self.finds(["subjects.py", "--message", "message"], "the message: 0 characters")
        self.write("message", "Evict chunks\n\n" + "why " * 30)
        self.passes("subjects.py", "--message", "message")

    def test_lengths_of_documents(self):
        self.write("README.md", "line\n" * 121)
        self.write("docs/design/note.md", "line\n" * 121)
        self.write("docs/operate/page.md", "line\n" * 121)
        self.finds(["lines.py"], "README.md: 121 lines", "docs/design/note.md: 121 lines", "2 too long")

    def test_the_glossary(self):
        head = "| term | meaning | source |\n|---|---|---|\n"
        self.write("docs/reference/glossary.md", head + "| chunk | 2 MiB | UVM |\n| ticket | a right |\n")
        self.finds(["lines.py"], "glossary.md: 'ticket' has no source", "1 too long")
        self.write("docs/reference/glossary.md", head + "| chunk | 2 MiB | UVM |\n" * 61)
        self.finds(["lines.py"], "glossary.md: 61 terms")

    def test_links(self):
        self.write("a.md", "# One\n\n[gone](b.md) [no heading](#two) [fine](#one) [web](https://example.com/x)\n")
        self.finds(["links.py"], "a.md:3: b.md: no such file", "a.md:3: #two", "2 broken")

    def test_tables(self):
        self.write("a.md", "| a | b |\n|---|---|\n| `x \\| y` | 1 |\n\n| 2 | 3 |\n\n| c | d |\n|:--|--:|\n| 4 |\n")
        self.finds(["links.py"], "a.md:5: a table without a line", "a.md:9: 1 cells in a table of 2", "2 broken")

    def test_structure(self):
        functions = "".join(f"  int F{i}(int a, std::function<void()> f) const;\n" for i in range(26))
        head = "class Large : public Small {\n public:\n  Large();\n  int size() const { return 1; }\n"
        self.write("hooklib/policy/large.h", head + functions + "};\n")
        self.write("hooklib/memory/long.h", "// A comment.\n" * 151)
        self.write("agent/long.h", "// A comment.\n" * 151)
        self.finds(
            ["structure.py"],
            "hooklib/policy/large.h: Large has 27 public functions",
            "hooklib/memory/long.h: 151 lines",
            "3 headers, 1 too long; 2 classes, 1 too large",
        )
        flags = "".join(f"  bool is_{i} = false;\n" for i in range(20))
        self.write("hooklib/memory/chunk.h", f"struct Chunk {{\n{flags}}};\n")
        self.finds(["structure.py"], "chunk.h: 20 fields, 20 of them flags")
        self.write("hooklib/memory/chunk.h", "struct Chunk {\n  int base = 0;\n};\n")
        private = functions.replace("  int F0", " protected:\n  int F0")
        self.write("hooklib/policy/large.h", f"struct Large {{\n  Large();\n{private}}};\n")
        (self.root / "hooklib/memory/long.h").unlink()
        self.passes("structure.py")

    def test_rules(self):
        self.write("hooklib/policy/a.cc", "constexpr int kFirst = 1, kSecond = 2;\nconstexpr uint64_t kSize = 3;\n")
        page = "**1 rules**\n\n| rule | constants | file | reason |\n|---|---|---|---|\n"
        page += "| one | `kFirst`%s | a.cc | rest |\n\n`kSize`\n"
        self.write("docs/design/rules.md", page % ", `kSecond`")
        self.passes("rules.py")
        self.write("docs/design/rules.md", (page % ", `kGone`").replace("1 rules", "2 rules"))
        self.finds(["rules.py"], "kSecond is in no row", "kGone does not exist", "has 1 rules, the text says 2")

    def test_layering(self):
        self.write("scheduler/a.cc", "#include <cuda.h>\n")
        self.write("common/a.h", '#include "../agent/node.h"\n')
        self.finds(["layering.py"], "scheduler/a.cc:1: includes cuda.h", "common/a.h:1: includes ../agent/node.h")

    def test_locks(self):
        self.passes("locks.py")
        for lock in ("std::mutex a;", "std::shared_mutex a;", "pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER;"):
            with self.subTest(lock):
                self.write("hooklib/a.cc", f"{lock}\n")
                self.finds(["locks.py"], "hooklib/a.cc:1: a lock without annotations", "1 that the analysis")
        self.write("hooklib/a.cc", "// Not a std::mutex.\nMutex a;\nint b SLUICE_GUARDED_BY(a);\n")
        self.write("agent/a.h", "// unannotated lock: held by C code alone\npthread_mutex_t a;\n")
        self.write("agent/wrapper.h", 'class SLUICE_CAPABILITY("mutex") Lock {\n  std::mutex lock_;\n};\n')
        self.write("simgpu/a.cc", "std::mutex a;\n")  # one lock, held in every call
        self.passes("locks.py")

    def test_locks_guard_something(self):
        fault = "common/a.cc:%d: a lock that guards nothing by name"
        for line, text in (
            (1, "Mutex a;\nint b;\n"),
            (1, "mutable Mutex a, c;\nint b SLUICE_GUARDED_BY(c);\n"),
            (1, "Mutex a;  // guards no data:\n"),
            (3, "Mutex c;  // guards no data: it orders calls\nint d;\nstatic Mutex a;\n"),
            (2, '#include "common/b.h"\nMutex a;\n'),
            (1, "Mutex a;\n// SLUICE_GUARDED_BY(a)\nint b;\n"),
            (1, "Mutex a;\nvoid Helper() SLUICE_REQUIRES(a);\n"),
        ):
            with self.subTest(text):
                self.write("common/b.h", "int b;\n")
                self.write("common/a.cc", text)
                self.finds(["locks.py"], fault % line, "1 that the analysis")
        for text in (
            "Mutex a;\nint b SLUICE_GUARDED_BY(a);\n",
            "Mutex a;\nint* b SLUICE_PT_GUARDED_BY(shared->a);\n",
            "Mutex a;\nstd::map<int, int>& All() SLUICE_REQUIRES(a) {\n",
            "// One caller at a time.\n// Guards no data: it orders calls.\nstatic Mutex a;\n",
            '#include "common/b.h"\nMutex a;\n',
        ):
            with self.subTest(text):
                self.write("common/b.h", "extern Mutex a;\nint& b() SLUICE_REQUIRES(a);\n")
                self.write("common/a.cc", text)
                self.passes("locks.py")

    def test_each_script_answers_help(self):
        """Also a script that would install or build: it must read env.sh before anything else."""
        env = re.compile(r"#!/usr/bin/env bash\n(#.*\n)+set -e.*\n(cd .*\n)?\. scripts/env\.sh\n")
        for path in sorted(p for p in SCRIPTS.iterdir() if p.is_file() and os.access(p, os.X_OK)):
            text = path.read_text()
            with self.subTest(path.name):
                if text.startswith("#!/usr/bin/env bash"):
                    self.assertTrue(env.match(text), "its head, `set -e`, `cd`, and env.sh are the first lines")
                output = subprocess.run(
                    [path.name, "--help"], executable=path, cwd="/", capture_output=True, text=True, timeout=60
                )
                self.assertEqual((output.returncode, output.stderr), (0, ""))
                if path.suffix == "":
                    self.assertIn(f"scripts/{path.name}", output.stdout)
        for name in ("lines.py", "links.py", "prose.py", "rules.py", "structure.py", "vocabulary.py"):
            with self.subTest(name):
                self.assertIn(name, subprocess.check_output([sys.executable, SCRIPTS / name, "--help"], text=True))

    def test_each_nightly_part_has_a_place(self):
        """In the script, in the workflow, and in the page of the last results."""
        top = SCRIPTS.parent
        parts = re.search(r"^all=\((.*)\)", (SCRIPTS / "nightly").read_text(), re.M).group(1).split()
        workflow = (top / ".github/workflows/nightly.yml").read_text()
        self.assertEqual(re.search(r"part: \[(.*)\]", workflow).group(1).split(", "), parts)
        page = (top / "docs/lab/nightly.md").read_text()
        for pattern in (r"^- `(\w+)`: ", r"^\| (\w+) \| (?!date)"):
            self.assertEqual(sorted(re.findall(pattern, page, re.M)), sorted(parts))

    def test_the_api_page(self):
        for name in ("agent.proto", "sluice/wire.h"):
            self.write(f"proto/{name}", (SCRIPTS.parent / "proto" / name).read_text())
        (self.root / "docs/reference").mkdir(parents=True)
        self.finds(["api_page", "--check"], "is not current")
        self.passes("api_page")
        self.passes("api_page", "--check")
        proto = self.root / "proto/agent.proto"
        proto.write_text(proto.read_text().replace("uint32 units = 2;", "uint32 units = 2;  // hundredths of a GPU"))
        self.finds(["api_page", "--check"], "is not current")


if __name__ == "__main__":
    unittest.main()
