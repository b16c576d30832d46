"""Rows of test/gpu/run: inference servers with paged caches (workloads/paged.py) and mixtures of experts (moe.py).

Weights of 1.6 GiB, a cache of 4 GiB, a budget of 4 GiB if nothing else is said. The touched chunks of the first rows
fit the budget. With half of the pages in use, strewn over all chunks, 1.6 GiB do not fit; half of that is read over the
link.
"""

# --pages, in words, options, GiB of the budget, goal
PAGES = (
    ("first", "the first twelfth in use, a graph", ["--graph"], 4, "<= 1.05"),
    ("first", "the first twelfth in use", [], 4, "<= 1.05"),
    ("first", "the first twelfth in use, one block in 5 GiB", ["--block"], 5, "<= 1.05"),
    ("churn", "pages of sequences that begin and end in use", [], 4, "<= 1.05"),
    ("strewn", "half of the pages in use, a graph", ["--graph"], 4, "<= 1.25 of the link's bound"),
    ("strewn", "half of the pages in use", [], 4, "<= 1.25 of the link's bound"),
)


def paged_rows(python, hook):
    return [
        {
            "name": f"paged cache of 4 GiB, {words}",
            "command": [python, "test/gpu/workloads/paged.py", "--pages", pages, *arguments],
            "rounds": 1,
            "figure": "step",
            "skip": 0,
            "variants": {
                "unhooked": {},
                "all that is named counts as touched": {**hook, "budget": gib << 30, "env": {"SLUICE_LEARN": "0"}},
                "sluice": {**hook, "budget": gib << 30},
            },
            "ratio": ("sluice", "unhooked"),
            "goal": goal,
            "evicts": True,
        }
        for pages, words, arguments, gib, goal in PAGES
    ]


def expert_rows(python, hook):
    """Experts of 3.4 GiB in a budget of 2.6 GiB: the popular ones of each layer fit."""
    return [
        {
            "name": f"mixture of experts, {words}",
            "command": [python, "test/gpu/workloads/moe.py", *options],
            "rounds": 1,
            "figure": "step",
            "skip": 0,
            "variants": {
                "unhooked": {},
                "faults": {**hook, "budget": 2600 << 20, "env": {"SLUICE_PREFETCH": "off"}},
                "sluice": {**hook, "budget": 2600 << 20},
            },
            "ratio": ("sluice", "unhooked"),
            "goal": goal,
            "evicts": True,
        }
        for words, options, goal in (
            ("a loop over the experts", [], "<= 1.1"),
            ("a grouped product by a table on the GPU", ["--grouped"], "<= 1.3"),
        )
    ]
