"""serving.py in a pod, where no process writes to its stdin.

    serving_schedule.py AT,REQUESTS,SECONDS... -- OPTIONS of serving.py

AT is CLOCK_MONOTONIC, which containers of a machine share: levels of several servers begin together.
"""

import json
import os
import pathlib
import sys

split = sys.argv.index("--")
orders = []
for word in sys.argv[1:split]:
    at, requests, seconds = map(float, word.split(","))
    orders.append(json.dumps({"at_once": int(requests), "seconds": seconds, "begin": at}) + "\n")
read, write = os.pipe()
os.write(write, "".join(orders).encode())  # fewer bytes than a pipe holds
os.close(write)
os.dup2(read, 0)
program = str(pathlib.Path(__file__).resolve().parent / "serving.py")
os.execv(sys.executable, [sys.executable, "-u", program, *sys.argv[split + 1 :]])
