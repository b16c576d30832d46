"""The rows of test/gpu/run, most important first. Each correctness row runs without the hook, hooked at full budget,
and hooked at 0.6 of its live bytes; a row that leaves one out gives the reason in `why`."""

import vmm_rows
from commands import HOOK, PYTHON, SMALL, feature, train
from rows_changing import changing_rows
from rows_libraries import LIBRARIES
from rows_paged import expert_rows, paged_rows

MODES = ("full", "tight")

# name, command, and options: env (all runs), hooked_env, modes, why (a mode is left out), must (figures of every hooked
# run), keeps (share of an unhooked figure that full budget must reach), in_at_most_gib (fetched, tight), gpus,
# managed_gib (that each of its `processes` on a GPU asks for at most; `alone`: the whole allowance)
CORRECTNESS = [
    {"name": "transformer d=2048", "command": train("transformer"), "alone": True, "reports": True},
    {"name": "transformer d=512", "managed_gib": 3.25, "command": train(*SMALL, "--steps", "10"), "reports": True},
    {"name": "convnet (cuDNN)", "managed_gib": 3.25, "command": train("convnet", "--batch", "128", "--width", "128")},
    {"name": "LLM decode", "managed_gib": 4.5, "command": train("decode", "--layers", "24", "--steps", "24")},
    {
        "name": "CUDA graphs in training",
        "managed_gib": 3.25,
        "command": train("transformer", "--width", "1024", "--graphs", "--steps", "6"),
    },
    {"name": "two reduce-overhead graphs", "managed_gib": 3.25, "command": feature("graph_pair"), "seconds": 60},
    {"name": "pressure beside a capture", "managed_gib": 3.25, "command": feature("capture_beside")},
    {
        "name": "torch.compile",
        "managed_gib": 3.25,
        "command": train("transformer", "--width", "1024", "--layers", "6", "--compile", "default"),
    },
    {"name": "threads with own streams", "managed_gib": 3.25, "command": feature("threads")},
    {"name": "Triton", "managed_gib": 3.25, "command": feature("triton")},
    {"name": "CuPy", "managed_gib": 3.25, "command": feature("cupy")},
    {
        "name": "CUDA C, shared runtime",
        "managed_gib": 3.25,
        "command": ["build/gpu-bin/plain_shared"],
        "build": "plain_shared",
    },
    {
        "name": "CUDA C, static runtime",
        "managed_gib": 3.25,
        "command": ["build/gpu-bin/plain_static"],
        "build": "plain_static",
    },
    # Two temporaries of half the budget each are freed and reused while the GPU lags behind the host; a wrong value of
    # theirs stays in the table.
    {
        "name": "a table three times the budget, filled and looked up",
        "managed_gib": 4.5,
        "command": [PYTHON, "test/gpu/workloads/lookups.py", "--steps", "4"],
        "budget": 1 << 30,
        "modes": ("tight",),
        "why": "tests the budget itself",
    },
    {"name": "torch.profiler", "managed_gib": 3.25, "command": train(*SMALL, "--steps", "4", "--profile")},
    {
        "name": "caching allocator off",
        "managed_gib": 3.25,
        "command": train(*SMALL, "--steps", "4"),
        "env": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        "live_of": "transformer d=512",
    },
    {"name": "fork", "managed_gib": 5.5, "processes": 2, "command": feature("fork")},
    {
        "name": "out of memory and retry",
        "managed_gib": 3.25,
        "command": feature("oom"),
        "modes": ("full",),
        "why": "tests the limit itself",
        "hooked_env": {"SLUICE_MEMORY_LIMIT": "3200Mi"},
        "budget": 2 << 30,
        "must": {"refused": 1},
    },
    *vmm_rows.CORRECTNESS,
    {
        "name": "IPC between processes",
        "managed_gib": 1,
        "processes": 2,
        "command": feature("ipc"),
        "modes": ("full",),
        "hooked_env": {"SLUICE_UNMANAGED": "1"},
        "why": "managed memory cannot be exported: SLUICE_UNMANAGED=1",
    },
    {
        "name": "stdout is the program's",
        "managed_gib": 1,
        "command": feature("stdout_clean"),
        "modes": ("full",),
        "why": "a tiny program has nothing to evict",
        "stdout": "10.0\n",
    },
    {
        "name": "contexts",
        "managed_gib": 1,
        "command": feature("many_contexts"),
        "silent": True,
        "modes": ("full",),
        "why": "a tiny program has nothing to evict",
    },
    {
        "name": "NCCL, DDP on two GPUs",
        "managed_gib": 3.25,
        "command": feature("ddp"),
        "modes": ("full",),
        "why": "full budget only: time on two GPUs is short",
        "gpus": 2,
    },
    # Bouncing pages would be faulted in (12 GB/s) instead of read over the GPUs' link, and more often than each GPU's
    # own 2 GiB a step.
    {
        "name": "blocks of two GPUs",
        "managed_gib": 3.25,
        "command": feature("peers"),
        "gpus": 2,
        "must": {"kept": True},
        "keeps": {"peer_gbps": 0.5},
        "in_at_most_gib": 22,
    },
    *LIBRARIES,
]

# A benchmark: variants run in turn, round by round; `figure` picks a number (lower is better) from a RESULT line.
# `on_card_beyond`: bytes above the budget that may be resident (on_card_bytes): two pieces that are evicted behind a
# running launch.
BENCHMARKS = [
    {
        "name": "single calls",
        "command": ["build/bin/engine_micro", "10"],
        "rounds": 5,
        "kind": "micro",
        "variants": {"unhooked": {}, "hooked": HOOK},
    },
    # Two processes differ by more than the hook adds, so launches alternate in one.
    {
        "name": "launch that fits",
        "command": ["build/bin/engine_micro", "5", "paired"],
        "rounds": 5,
        "kind": "micro",
        "variants": {"hooked": HOOK},
    },
    {
        "name": "transformer d=2048, 4 GiB budget",
        "command": train("transformer", "--steps", "14"),
        "rounds": 2,
        "figure": "step",
        "skip": 7,
        "variants": {
            "faults": {**HOOK, "budget": 4 << 30, "env": {"SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "budget": 4 << 30},
        },
        "ratio": ("faults", "sluice"),
        "goal": ">= 4",
        "at_least": 2.5,
        "evicts": True,
    },
    {
        "name": "transformer d=2048 that fits",
        "command": train("transformer", "--steps", "30"),
        "rounds": 3,
        "figure": "step",
        "skip": 5,
        "variants": {"unhooked": {}, "hooked": {**HOOK, "budget": 9 << 30}},
        "ratio": ("hooked", "unhooked"),
        "goal": "<= 1.01",
        "at_most": 1.01,
    },
    {
        "name": "launch-bound step d=512 that fits",
        "command": train(*SMALL, "--steps", "120"),
        "rounds": 5,
        "figure": "step",
        "skip": 20,
        "variants": {
            "unhooked": {},
            "hooked": {**HOOK, "budget": 3 << 30},
            "hooked, SLUICE_UNMANAGED=1": {**HOOK, "budget": 3 << 30, "env": {"SLUICE_UNMANAGED": "1"}},
        },
        "ratio": ("hooked", "unhooked"),
        "goal": "<= 1.02",
        "at_most": 1.02,
    },
    # 136 MiB are live; the operands of the two rows are resident. Each process runs on one of two kinds of cores, hence
    # the many rounds.
    {
        "name": "launches over the budget",
        "command": ["build/bin/engine_micro", "5", "launches"],
        "rounds": 24,
        "kind": "micro",
        "variants": {"unhooked": {}, "hooked": {**HOOK, "budget": 120 << 20, "env": {"SLUICE_MEMORY_FACTOR": "100"}}},
    },
    {
        "name": "first step and model load (d=2048)",
        "command": train("transformer", "--steps", "2"),
        "rounds": 2,
        "figure": "until_first_step_s",
        "variants": {"unhooked": {}, "hooked": {**HOOK, "budget": 9 << 30}},
        "ratio": ("hooked", "unhooked"),
        "goal": "<= 1.1",
        "at_most": 1.1,
    },
    {
        "name": "convnet (4.57 GiB) at 1/1.5 of its live bytes",
        "command": train("convnet", "--batch", "256", "--steps", "12"),
        "rounds": 1,
        "figure": "step",
        "skip": 6,
        "variants": {
            "faults": {**HOOK, "budget": 3120 << 20, "env": {"SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "budget": 3120 << 20},
            "sluice, nothing used in host memory": {**HOOK, "budget": 3120 << 20, "env": {"SLUICE_HOST_ACCESS": "0"}},
        },
        "ratio": ("faults", "sluice"),
        "goal": ">= 3",
        "at_least": 3,
        "evicts": True,
    },
    {
        "name": "convnet (4.57 GiB) at 1/3 of its live bytes",
        "command": train("convnet", "--batch", "256", "--steps", "12"),
        "rounds": 1,
        "figure": "step",
        "skip": 6,
        "variants": {
            "faults": {**HOOK, "budget": 1560 << 20, "env": {"SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "budget": 1560 << 20},
            "sluice, nothing used in host memory": {**HOOK, "budget": 1560 << 20, "env": {"SLUICE_HOST_ACCESS": "0"}},
        },
        "ratio": ("faults", "sluice"),
        "goal": ">= 3",
        "at_least": 3,
        "evicts": True,
    },
    {
        "name": "LLM decode, weights twice the budget",
        "command": train("decode", "--layers", "24", "--steps", "32", "--host-pace"),
        "rounds": 1,
        "figure": "step",
        "skip": 8,
        "variants": {
            "unhooked": {},
            "faults": {**HOOK, "budget": 1342 << 20, "env": {"SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "budget": 1342 << 20},
            "sluice, no duplicates": {**HOOK, "budget": 1342 << 20, "env": {"SLUICE_READ_MOSTLY": "0"}},
        },
        "ratio": ("faults", "sluice"),
        "goal": "(0.85 of the link's rate: 32 ms)",
        "evicts": True,
    },
    {
        "name": "lookups in a table three times the budget",
        "command": [PYTHON, "test/gpu/workloads/lookups.py"],
        "rounds": 1,
        "figure": "step",
        "skip": 8,
        "variants": {
            "faults": {**HOOK, "budget": 1 << 30, "env": {"SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "budget": 1 << 30},
        },
        "ratio": ("faults", "sluice"),
        "goal": ">= 0.97 (never slower than by faults), and held to the budget",
        "at_least": 0.97,
        "evicts": True,
        "on_card_beyond": 256 << 20,
    },
    {
        "name": "lookups in eight tables, three times the budget",
        "command": [PYTHON, "test/gpu/workloads/lookups.py", "--tables", "8", "--table-mib", "384"],
        "rounds": 1,
        "figure": "step",
        "skip": 8,
        "variants": {
            "faults": {**HOOK, "budget": 1 << 30, "env": {"SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "budget": 1 << 30},
        },
        "ratio": ("faults", "sluice"),
        "goal": ">= 0.97 (never slower than by faults), and held to the budget",
        "at_least": 0.97,
        "evicts": True,
        "on_card_beyond": 256 << 20,
    },
    *paged_rows(PYTHON, HOOK),
    *expert_rows(PYTHON, HOOK),
    *changing_rows(PYTHON, HOOK, train),
    *vmm_rows.BENCHMARKS,
    {
        "name": "CUDA graph inference that fits",
        "command": train("inference", "--layers", "24", "--steps", "40"),
        "rounds": 2,
        "figure": "step",
        "skip": 8,
        "variants": {"unhooked": {}, "hooked": {**HOOK, "budget": 6 << 30}},
        "ratio": ("hooked", "unhooked"),
        "goal": "<= 1.01",
        "at_most": 1.01,
    },
    {
        "name": "CUDA graph inference at 1/1.5 of its live bytes",
        "command": train("inference", "--layers", "24", "--steps", "16"),
        "rounds": 1,
        "figure": "step",
        "skip": 8,
        "live": "inference",
        "variants": {
            "faults": {**HOOK, "fraction": 2 / 3, "env": {"SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "fraction": 2 / 3},
            "sluice, no duplicates": {**HOOK, "fraction": 2 / 3, "env": {"SLUICE_READ_MOSTLY": "0"}},
        },
        "ratio": ("faults", "sluice"),
        "goal": ">= 2",
        "at_least": 2,
        "evicts": True,
    },
]

# Only with `--only peers` (about 2 minutes): the recorded traces played on the GPU at two thirds (the decoder's at
# half) of their live bytes: by PUMP's rules (experiments/bench/peer_replay.cc), by demand paging and by sluice.
# Kernels read the pages that the recorded ones touched, and run as long. Binaries: build/bin/sluice-replay with
# build/lib/replay, build/test/peer_replay.
PEERS = {"transformer": 3896, "convnet": 3114, "decode": 1342}  # MiB


def peers():
    out = []
    for name, mib in PEERS.items():
        what = [f"experiments/traces/{name}.sltrace", "--warm-up", "3", "--steps", "8"]
        replay = ["build/bin/sluice-replay", *what, "--json"]
        # The engine sets the factor to 100 where it sees library calls, as in the recorded programs; traces hold none.
        full = {"SLUICE_MEMORY_FACTOR": "100"}
        variants = {
            "pump": {
                "guarded": True,
                "command": ["build/test/peer_replay", *what, "--rules", "pump", "--budget-mib", str(mib)],
            },
            "faults": {**HOOK, "budget": mib << 20, "env": {**full, "SLUICE_PREFETCH": "off"}},
            "sluice": {**HOOK, "budget": mib << 20, "env": full},
            "fits": {**HOOK, "budget": 9 << 30, "env": full},
        }
        out.append(
            {
                "name": f"peers: {name} in {mib} MiB",
                "rounds": 1,
                "figure": "median_ms",
                "command": replay,
                "variants": variants,
                "ratio": ("pump", "sluice"),
                "goal": "never slower, median >= 1.5",
                "at_least": 1,
            }
        )
    return out


# Only with `--only fidelity` (about 4 minutes): the programs of experiments/traces as recorded, each unhooked, where it
# fits, and at two budgets by demand paging and by sluice; each also prints its host's pace.
# experiments/bench/fidelity.py compares the simulated GPU's replays with these.
FIDELITY_BUDGETS = {"transformer": (4096, 3072), "convnet": (3072, 2304), "decode": (2048, 1280)}  # MiB
FIDELITY_PROGRAMS = {
    "transformer": train("transformer", "--steps", "7", "--host-pace"),
    "convnet": train("convnet", "--batch", "256", "--steps", "7", "--host-pace"),
    "decode": train("decode", "--layers", "24", "--steps", "12", "--host-pace"),
}


def fidelity():
    out = []
    for name, budgets in FIDELITY_BUDGETS.items():
        variants = {"unhooked": {}, "fits": {**HOOK, "budget": 9 << 30}}
        for mib in budgets:
            variants[f"faults {mib}"] = {**HOOK, "budget": mib << 20, "env": {"SLUICE_PREFETCH": "off"}}
            variants[f"sluice {mib}"] = {**HOOK, "budget": mib << 20}
        out.append(
            {
                "name": f"fidelity {name}",
                "command": FIDELITY_PROGRAMS[name],
                "rounds": 1,
                "figure": "step",
                "skip": 3,
                "variants": variants,
                "ratio": (f"faults {budgets[0]}", f"sluice {budgets[0]}"),
                "seconds": 90,
            }
        )
    return out
