"""The configurations of test/gpu/serving, and how its figures are judged."""

import dataclasses
import math
import statistics

LEVELS = (2, 8, 32)  # requests at once on the GPU, of all servers together
# NVIDIA's own figures for two models on one A100, of a dedicated one's tokens a second (Dynamo's documentation, 2026).
SM_FRACTIONS = {2: 0.635, 8: 0.68, 32: 0.879}
OVER = 1.5  # live bytes of both servers, of the GPU
OVER_GOAL = 0.9
WAKE_RATE, WAKE_EXTRA_MS = 40e9, 50.0


@dataclasses.dataclass(frozen=True)
class Config:
    name: str
    text: str
    servers: int
    fraction: float | None  # None: without the hook
    card_gib: int = 16  # that the agent offers
    cache_mib: int = 1280
    over: bool = False  # weights and cache: OVER times the GPU, of all servers together
    large: bool = False  # as large as those, on a GPU of twice the memory; where it is named
    idle: bool = False  # the last server has no requests

    def live_mib(self, card_gib):
        """Weights and cache of each server; None: `cache_mib` says it."""
        if not (self.over or self.large):
            return None
        return int(OVER * card_gib * 1024 / self.servers / (2 if self.large else 1))

    def scaled_card_gib(self, scale):
        """The GPU's memory divided by `scale`, in GiB; `large` stays twice as large as `over`."""
        return max(1, self.card_gib // (2 if self.large else 1) // scale) * (2 if self.large else 1)

    def levels(self):
        return LEVELS if self.idle else tuple(n for n in LEVELS if n >= self.servers)

    def each(self, level):
        """Requests at once of each server."""
        if self.idle:
            return [level] + [0] * (self.servers - 1)
        return [level // self.servers] * self.servers


# In the order of their importance. All managed memory of a configuration stays within 19 GiB.
CONFIGS = {
    c.name: c
    for c in (
        Config("dedicated", "one server, no sluice", 1, None),
        Config("two", "two at 0.5 + 0.5", 2, 0.5),
        Config("two-bare", "two, nothing controls the sharing", 2, None),
        Config("two-over", "two at 0.5 + 0.5, together 1.5 times the GPU", 2, 0.5, card_gib=12, over=True),
        Config("two-large", "two at 0.5 + 0.5, the same memory, which fits", 2, 0.5, card_gib=24, large=True),
        Config("two-large-bare", "two, the same memory, nothing controls it", 2, None, card_gib=24, large=True),
        Config("dedicated-hooked", "one server at 1.0", 1, 1.0),
        Config("idle", "one that works beside one without requests, 0.5 + 0.5", 2, 0.5, idle=True),
        Config("four", "four at 0.25", 4, 0.25, cache_mib=384),
    )
}


def configs_of(engine, names):
    """Those of these names (all if there are none) that the engine can run."""
    # transformers' buffers and untied weights do not fit 4 GiB.
    left_out = {"four"} if engine == "transformers" else set()
    return [c for c in CONFIGS.values() if (c.name in names or not (names or c.large)) and c.name not in left_out]


def percentile(values, share):
    """Nearest rank; None without values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def summary(answers):
    """Of the servers' answers to one level: tokens a second in sum and of each, times to the first token."""
    rates = [a["tokens"] / a["seconds"] for a in answers]
    first = [ms for a in answers for ms in a["first_ms"]]
    between = [a["between_ms"] for a in answers if a["between_ms"] is not None]
    return {
        "sum": sum(rates),
        "each": rates,
        "first_p50_ms": percentile(first, 0.5),
        "first_p99_ms": percentile(first, 0.99),
        "between_ms": max(between, default=None),
    }


class Values:
    """Answers to the same prompt in a batch of the same size are compared with those of servers without the hook, also
    of those that run later."""

    def __init__(self):
        self.known, self.unsteady, self.compared = {}, set(), []

    def add(self, row, answers, hooked, deterministic):
        """Sets `values` and `failed` of this row, and again of all earlier ones."""
        if not hooked:
            self.learn(answers)
        self.compared.append((row, answers, hooked, deterministic))
        for row, answers, hooked, deterministic in self.compared:
            row["values"], row["failed"] = said_of_values(deterministic, hooked, *self.compare(answers))

    def learn(self, answers):
        """Answers of servers without the hook."""
        for a in answers:
            self.unsteady |= {(a["at_once"], p) for p in a["differing"]}
            for prompt, digest in a["digests"].items():
                if self.known.setdefault((a["at_once"], prompt), digest) != digest:
                    self.unsteady.add((a["at_once"], prompt))

    def compare(self, answers):
        """(prompts compared, of these different). A prompt whose answer differs without the hook is not compared."""
        compared = different = 0
        for a in answers:
            for prompt, digest in a["digests"].items():
                key = (a["at_once"], prompt)
                if key in self.known and key not in self.unsteady:
                    compared += 1
                    different += digest != self.known[key] or prompt in a["differing"]
        return compared, different

    def by_batch(self):
        """Of prompts answered in batches of several sizes without the hook: (how many, of these with equal bits)."""
        found = {}
        for (_, prompt), digest in self.known.items():
            found.setdefault(prompt, []).append(digest)
        several = [set(digests) for digests in found.values() if len(digests) > 1]
        return len(several), sum(len(digests) == 1 for digests in several)


def said_of_values(deterministic, hooked, compared, different):
    """(text, whether the row failed)."""
    if not hooked:
        return "reference", False
    if compared == 0:
        return "none to compare with", deterministic
    if different == 0:
        return f"{compared} equal", False
    text = f"{different} of {compared} differ"
    return (text, True) if deterministic else (text + " (its batches vary)", False)


def median_sum(measured, config, level):
    """Tokens a second, the median of the rounds; None: not measured."""
    found = measured.get(config, {}).get(level)
    return statistics.median(s["sum"] for s in found) if found else None


def goals(measured):
    """(row, goal, value, met) of one engine; measured: {config: {level: [the summary of each round]}}."""
    rows = []
    for n in LEVELS:
        dedicated, two, over, large = (
            median_sum(measured, c, n) for c in ("dedicated", "two", "two-over", "two-large")
        )
        if dedicated is not None and two is not None:
            part = two / dedicated if dedicated else 0
            rows.append((f"two at 0.5 + 0.5, {n} requests", f"> {SM_FRACTIONS[n]} of dedicated", part,
                         part > SM_FRACTIONS[n]))  # fmt: skip
        if two is not None and over is not None:
            part = over / two if two else 0
            rows.append((f"the same with {OVER} times the memory, {n} requests", f">= {OVER_GOAL} of two that fit",
                         part, part >= OVER_GOAL))  # fmt: skip
        if large is not None and over is not None:
            part = over / large if large else 0
            rows.append((f"the same with {OVER} times the memory, {n} requests",
                         f">= {OVER_GOAL} of the same memory that fits", part, part >= OVER_GOAL))  # fmt: skip
    return rows


def wake_goal_ms(weight_bytes, unparked_ms):
    """To the first token of a parked server: its weights at WAKE_RATE, and the time without parking."""
    return weight_bytes / WAKE_RATE * 1e3 + WAKE_EXTRA_MS + unparked_ms


def number(value, digits=1):
    return "" if value is None else f"{value:.{digits}f}"


def markdown(results):
    """Of the whole run: {"machine", "engines": {name: {"rows", "measured", "wake", "batches", "failures"}}}."""
    lines = [f"# {results['machine']}", ""]
    for engine, found in results["engines"].items():
        lines += [
            f"## {engine}",
            "",
            "| configuration | requests at once | tokens a second | of each | of dedicated | first token p50 / p99 ms "
            "| between tokens ms | launches a token | compute tokens demanded, of the time | values |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in found["rows"]:
            s = row["summary"]
            dedicated = median_sum(found["measured"], "dedicated", row["level"])
            part = f"{s['sum'] / dedicated:.3f}" if dedicated else ""
            values = f"**{row['values']}**" if row["failed"] else row["values"]
            lines.append(
                f"| {row['text']} | {row['level']} | {s['sum']:.0f} | {', '.join(f'{x:.0f}' for x in s['each'])} | "
                f"{part} | {number(s['first_p50_ms'])} / {number(s['first_p99_ms'])} | {number(s['between_ms'], 2)} "
                f"| {number(row.get('launches'), 0)} | {number(row.get('tokens_part'), 2)} | {values} |"
            )
        lines += ["", "| goal | | measured | met |", "|---|---|---|---|"]
        for name, goal, value, met in (*found["goals"], *found["wake"]):
            lines.append(f"| {name} | {goal} | {value:.3f} | {'yes' if met else '**no**'} |")
        several, equal = found["batches"]
        if several:
            lines += ["", f"Of {several} prompts answered in batches of several sizes without the hook, {equal} have "
                          "the same bits in each."]  # fmt: skip
        lines += [f"- {text}" for text in found["failures"]] + [""]
    return "\n".join(lines)
