"""Ratios of pairs of figures, with their 95 % intervals."""

import math
import random
import statistics


def interval(ratios):
    """The geometric mean of these ratios, and its 95 % interval by Student's distribution of their logarithms."""
    logs = [math.log(r) for r in ratios]
    mean, n = statistics.fmean(logs), len(logs)
    if n < 2:
        return math.exp(mean), 0.0, math.inf
    z, f = statistics.NormalDist().inv_cdf(0.975), n - 1
    t = z + (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f * f)
    half = t * statistics.stdev(logs) / math.sqrt(n)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def of_medians(pairs, draws=4000):
    """The ratio of the two medians, and its 95 % interval by drawing pairs again. One odd run moves it little."""
    ratio = lambda chosen: statistics.median(a for a, _ in chosen) / statistics.median(b for _, b in chosen)
    dice = random.Random(7)
    drawn = sorted(ratio(dice.choices(pairs, k=len(pairs))) for _ in range(draws))
    return ratio(pairs), drawn[draws // 40], drawn[-draws // 40]
