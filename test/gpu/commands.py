"""Commands of the rows of test/gpu/run."""

PYTHON = "python3"


def train(*args):
    return [PYTHON, "test/gpu/workloads/train.py", *args]


def feature(name):
    return [PYTHON, "test/gpu/workloads/features.py", name]


SMALL = ["transformer", "--width", "512", "--layers", "12", "--batch", "8", "--length", "512"]
HOOK = {"hook": True}
