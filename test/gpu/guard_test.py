#!/usr/bin/env python3
"""Without a GPU: programs that run at once never get more managed memory than a quarter of the free memory in all."""

import pathlib
import random
import sys
import threading
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import correctness  # noqa: E402
import guard  # noqa: E402
import rows  # noqa: E402

GIB = guard.GIB
guard.settle = lambda nvml: 0


class Card:
    """As much free memory as it is told."""

    def __init__(self, *free_gib):
        self.handles = list(range(len(free_gib)))
        self.free = [int(f * GIB) for f in free_gib]

    def memory(self, index=0):
        return types.SimpleNamespace(free=self.free[index], used=0)


def limit_of(variables):
    return int(variables["SLUICE_MANAGED_LIMIT"])


def refused(what):
    try:
        with what:
            return ""
    except guard.Refused as error:
        return str(error)


def the_sum_never_exceeds_a_quarter():
    allowance = guard.Allowance(Card(79.2))
    held, highest, lock = [0], [0], threading.Lock()

    def program(seed):
        random_ = random.Random(seed)
        for _ in range(40):
            each = random_.choice([None, *[int(x * GIB) for x in (0.5, 1, 3.25, 4.5, 9)]])
            processes = random_.choice([1, 1, 2]) if each else 1
            with allowance.share(each, processes) as limit:
                with lock:
                    held[0] += limit_of(limit) * processes
                    highest[0] = max(highest[0], held[0])
                with lock:
                    held[0] -= limit_of(limit) * processes

    threads = [threading.Thread(target=program, args=(i,)) for i in range(12)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert not any(t.is_alive() for t in threads), "a program waits for ever"
    assert 0 < highest[0] <= int(79.2 * GIB) // 4, highest
    assert allowance.taken == allowance.holders == 0


def a_program_alone_gets_the_quarter_of_the_fullest_card():
    with guard.Allowance(Card(79.2)).share() as limit:
        assert limit_of(limit) == int(79.2 * GIB) // 4
    with guard.Allowance(Card(140, 40)).share() as limit:
        assert limit_of(limit) == 10 * GIB
    with guard.Allowance(Card(1000)).share() as limit:
        assert limit_of(limit) == guard.MAX_MANAGED
    with guard.Allowance(Card(0)).share() as limit:
        assert limit_of(limit) == 1  # 0 would be no limit


def processes_share_the_bytes_of_their_program():
    allowance = guard.Allowance(Card(40))
    with allowance.share(4 * GIB, processes=2) as limit:
        assert limit_of(limit) == 4 * GIB and allowance.taken == 8 * GIB
        assert "of which 2.0 are left" in refused(allowance.share(3 * GIB, wait=False))


def equal_programs_share_equally_and_no_further_one_starts():
    allowance = guard.Allowance(Card(40))
    with allowance.share(at_once=2, wait=False) as a:
        allowance.nvml.free = [20 * GIB]  # the first one's memory is no longer free: the allowance stays
        with allowance.share(at_once=2, wait=False) as b:
            assert limit_of(a) == limit_of(b) == 5 * GIB
            assert "0.0 are left" in refused(allowance.share(at_once=2, wait=False))


def more_than_the_quarter_is_refused_at_once():
    output = refused(guard.Allowance(Card(16)).share(5 * GIB))
    assert output.startswith("5.0 GiB of managed memory requested; a quarter of the free memory is 4.0 GiB"), output


def every_row_names_its_request():
    quarter = int(79.2 * GIB) // 4  # an H100's
    for row in rows.CORRECTNESS:
        assert row.get("alone") or 0 < row["managed_gib"] * row.get("processes", 1) * GIB <= quarter, row["name"]


class Session:
    """Rows run at once on a card; `most` is the sum of their limits at the worst moment."""

    def __init__(self, card):
        self.nvml, self.allowance = card, guard.Allowance(card)
        self.results, self.live, self.lock = {"correctness": []}, {}, threading.Lock()
        self.now = self.most = 0

    def left(self):
        return 1000

    def wanted(self, name, kind):
        return True

    def save(self):
        pass

    def hook(self, budget, extra, limit):
        return {**limit, **extra}

    def start(self, command, env, label, seconds=60):
        limit = int(env.get("SLUICE_MANAGED_LIMIT", 0)) * (2 if label.startswith("pair") else 1)
        with self.lock:
            self.now += limit
            self.most = max(self.most, self.now)
        time.sleep(0.05)
        with self.lock:
            self.now -= limit
        result = {"values": [1], "live_bytes": 1}
        return {"status": 0, "result": result, "stderr": "", "stdout": "", "out_gib": 1, "in_gib": 1}


def rows_run_together_as_far_as_they_fit():
    named = [{"name": f"small {i}", "managed_gib": 1, "command": []} for i in range(4)]
    named += [{"name": "pair", "managed_gib": 1.5, "processes": 2, "command": []}]
    named += [{"name": "large", "managed_gib": 4.5, "command": []}, {"name": "alone", "alone": True, "command": []}]
    session, kept = Session(Card(16)), rows.CORRECTNESS
    rows.CORRECTNESS = named
    try:
        correctness.correctness(session)
    finally:
        rows.CORRECTNESS = kept
    output = {e["name"]: (e["full"], e["tight"]) for e in session.results["correctness"]}
    assert all(output[row["name"]] == ("ok", "ok") for row in named if row["name"] != "large"), output
    assert all(mode.startswith("not run: 4.5 GiB of managed memory requested") for mode in output["large"]), output
    assert 2 * GIB < session.most <= 4 * GIB, session.most


TESTS = [
    rows_run_together_as_far_as_they_fit,
    the_sum_never_exceeds_a_quarter,
    a_program_alone_gets_the_quarter_of_the_fullest_card,
    processes_share_the_bytes_of_their_program,
    equal_programs_share_equally_and_no_further_one_starts,
    more_than_the_quarter_is_refused_at_once,
    every_row_names_its_request,
]

for test in TESTS:
    test()
    print("ok", test.__name__, flush=True)
