#!/usr/bin/env python3
"""How long kubectl sluice takes on a cluster of thousands of nodes, and how large webhook and extender become.

experiments/bench/many_nodes.py BUILD [--nodes N] [--pods N]

Prints rows of docs/benchmarks.md. The API server is a fake one in this process (test/lib/fake_apiserver.py): nodes have
20 KB, pods 3 KB, and each agent answers after 20 ms. kubectl is real. The baseline asks the same agents by a kubectl
process a node, one after the other; it is taken from 40 nodes.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/lib"))
import many_nodes  # noqa: E402

BASELINE_NODES = 40


def baseline(cluster, kubectl):
    """Seconds a node of kubectl processes one after the other."""
    env = dict(os.environ, KUBECONFIG=str(cluster.kubeconfig))
    begin = time.monotonic()
    for node in range(BASELINE_NODES):
        path = f"/api/v1/namespaces/sluice-system/pods/agent-{node:05d}:9402/proxy/status.json"
        subprocess.run([kubectl, "get", "--raw", path], env=env, check=True, stdout=subprocess.DEVNULL)
    return (time.monotonic() - begin) / BASELINE_NODES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20000)
    options = parser.parse_args()
    kubectl = many_nodes.find_kubectl()
    if kubectl is None:
        sys.exit("many_nodes: there is no kubectl; test/cluster/tools/build builds one")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    ending = f"{os.cpu_count()}-core VM | {time.strftime('%Y-%m-%d')} | {commit} |"
    with tempfile.TemporaryDirectory(prefix="mn-") as folder:
        program = options.build.resolve() / "bin/sluice"
        cluster = many_nodes.ManyNodes(program, kubectl, pathlib.Path(folder), options.nodes, options.pods)
        one = baseline(cluster, kubectl)
        for command, reads in ((["status"], 1), (["top", "--once"], 1), (["doctor"], 2)):
            done = cluster.run(*command)
            if done.returncode != 0:
                sys.exit(f"many_nodes: {command}: {done.stderr}{done.stdout[-2000:]}")
            before = one * options.nodes * reads
            what = f"`kubectl sluice {' '.join(command)}`, {options.nodes:,} nodes, {options.pods:,} pods, s"
            print(f"| {what} | {done.seconds:.1f} | {before:.0f} | {before / done.seconds:.0f} | 10 s | {ending}")
        cluster.server.close()
    large = subprocess.run(
        [ROOT / "test/scheduler/large_cluster_test.py", options.build / "bin/sluice-webhook"]
        + [options.build / "bin/sluice-extender", "--nodes", str(options.nodes), "--pods", str(options.pods)],
        capture_output=True,
        text=True,
    )
    if large.returncode != 0:
        sys.exit(large.stdout + large.stderr)
    for line in large.stdout.splitlines():
        what, _, figures = line.partition(": peak ")
        peak, _, limit = figures.partition(" MiB of ")
        if limit:
            print(f"| {what}, {options.nodes:,} nodes, peak MiB | {peak} | - | - | {limit.split()[0]} MiB | {ending}")


if __name__ == "__main__":
    main()
