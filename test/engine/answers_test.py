"""Answers of a real driver, from the simulated one and from the hook: answers_test.py BUILD [NAME...] | --list

answers.txt holds the answers of an H100 with driver 580.159.04 to experiments/probes/questions.cu.
"""

import pathlib
import subprocess
import sys

from engine_rig import LARGE, built, environment, expect, main, skip_if_sanitized, test

ANSWERS = pathlib.Path(__file__).with_name("answers.txt").read_text().splitlines()


def answers(group, budget):
    command = [str(built("test", "driver_questions")), group]
    env = environment(budget, more={"SIMGPU_CAPTURE": "error", "SIMGPU_MISUSE": "report"})
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    return done.stdout.splitlines()


def as_the_card(group):
    """Both give the card's answers. Some of them are times, so a busy machine gets a second try."""
    skip_if_sanitized("the engine is a library of its own there")
    wanted = [line for line in ANSWERS if line.startswith(group + ".")]
    expect(wanted, f"answers.txt has answers to {group}")
    for whose, budget in ("the simulated driver", None), ("the hook", LARGE):
        got = answers(group, budget)
        if got != wanted:
            got = [line if line in wanted else again for line, again in zip(got, answers(group, budget))]
        wrong = [f"{b} (the card: {a})" for a, b in zip(wanted, got) if a != b]
        expect(got == wanted, f"{whose} answers as the card", "\n".join(wrong) or str(got))


@test
def calls_in_the_legacy_stream_are_barriers():
    as_the_card("barrier")


@test
def calls_in_a_blocking_stream_come_behind_the_legacy_stream():
    as_the_card("behind_legacy")


@test
def frees_wait_for_the_work_of_their_context():
    """cuMemFree waits for the context of its block alone; frees of a pool, unmappings and others do not wait."""
    as_the_card("waits")


if __name__ == "__main__":
    sys.exit(main())
