"""An engine without a model, for the simulated GPU: it holds memory of the driver's, and tokens come by the clock."""

import ctypes
import hashlib
import time

PROMPT_S, STEP_S = 0.002, 0.002


class Engine:
    deterministic = True
    lowest_token, vocabulary = 0, 1000

    def __init__(self, torch, device, tiny, batches, longest, cache_bytes=None, live_bytes=None, reuse="last"):
        self.weight_bytes = 16 << 20
        self.cache_bytes = cache_bytes or live_bytes - self.weight_bytes
        driver = ctypes.CDLL("libcuda.so.1")
        context, pointer = ctypes.c_void_p(), ctypes.c_ulonglong()
        for name, *arguments in (
            ("cuInit", 0),
            ("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0),
            ("cuCtxSetCurrent", context),
            ("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(self.weight_bytes + self.cache_bytes)),
        ):
            if (status := getattr(driver, name)(*arguments)) != 0:
                raise SystemExit(f"serving: {name}: CUDA error {status}")
        self.driver, self.waiting, self.running = driver, [], []

    def prepare(self, at_once):
        self.at_once = at_once

    def submit(self, number, prompt, output):
        self.waiting.append((number, time.monotonic(), [], output, hashlib.sha256(bytes(str(prompt), "ascii"))))

    def poll(self):
        while self.waiting and len(self.running) < self.at_once:
            time.sleep(PROMPT_S)
            self.running.append(self.waiting.pop(0))
            self.running[-1][2].append(time.monotonic())
        time.sleep(STEP_S)
        for _, _, times, output, _ in self.running:
            if len(times) < output:
                times.append(time.monotonic())
        ended = [r for r in self.running if len(r[2]) >= r[3]]
        self.running = [r for r in self.running if len(r[2]) < r[3]]
        return [(number, arrived, times, said.hexdigest()[:16]) for number, arrived, times, _, said in ended]

    def close(self):
        pass
