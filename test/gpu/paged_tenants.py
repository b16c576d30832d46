"""Rows of test/gpu/tenants: servers with paged caches, which name more memory than they touch."""

import os
import time

from progress import done_at
from shared_gpu import KERNEL_US

PAGED_KERNEL_US = 40  # a step is a graph of such kernels, one for each 64 MiB


class PagedRows:
    def paged(self):
        """Two servers with paged caches: they name one and a half times the GPU and touch a tenth of it."""
        self.servers("")

    def paged_later(self):
        """The same, but the second begins while the first has all of the GPU."""
        self.servers(", the second begins later", later_ms=7000)

    def paged_eager(self):
        self.servers(", launches one by one", SLUICE_TENANT_EAGER="1")

    def paged_block(self):
        """The same, where each server's memory is one allocation that exceeds its budget, as llama.cpp's cache, and
        the touched part moves."""
        mib = int(0.75 * self.o.card_gib * 1024)
        self.servers(", of one allocation, and it moves", SLUICE_TENANT_BLOCK_MIB=str(mib // 64 * 64),
                     SLUICE_TENANT_MOVE_STEPS="64")  # fmt: skip

    def paged_block_eager(self):
        """The same, launched one by one."""
        mib = int(0.75 * self.o.card_gib * 1024)
        self.servers(", of one allocation, launches one by one", SLUICE_TENANT_BLOCK_MIB=str(mib // 64 * 64),
                     SLUICE_TENANT_EAGER="1")  # fmt: skip

    def servers(self, kind, later_ms=0, **more):
        card, t = self.card(spare=4 << 30), max(16 * self.scale, 16)
        try:
            rounds = int(os.environ.get("SLUICE_TENANT_ROUNDS", "0")) * PAGED_KERNEL_US // KERNEL_US
            env = {"SLUICE_TENANT_TOUCHED": "0.1", "SLUICE_TENANT_ROUNDS": str(rounds), **more}
            tenants = [
                card.start(0.75, t + (later_ms if i == 0 else 0) / 1000, 0.5, kernel_us=PAGED_KERNEL_US,
                           begin_ms=later_ms * i, env=env, memory_factor=100)
                for i in range(2)
            ]  # fmt: skip
            card.begun(*tenants)
            time.sleep(later_ms / 1000 + 0.9 * t)  # behind the first trial of tokens
            began, demanded = time.monotonic(), card.counted()
            time.sleep(0.07 * t)
            demanded = (card.counted()["token_seconds"] - demanded["token_seconds"]) / (time.monotonic() - began)
            results = [card.result(p) for p in tenants]
        finally:
            card.close()
        end = min(x["done"][-1][0] for x in results)
        rates = [(done_at(x, end) - done_at(x, end - t / 2)) / (t / 2) for x in results]
        waits = max(x["slowest_s"] for x in results)
        unit = "launches" if "SLUICE_TENANT_EAGER" in more else "steps"
        each = f"{rates[0]:.0f} and {rates[1]:.0f} {unit}/s in the second half"
        name = f"two servers, live 0.75 of the GPU each, a tenth of it touched{kind}"
        self.add(f"{name}: the slower one by the other", ">= 0.7", f"{min(rates) / max(max(rates), 1e-9):.2f}",
                 min(rates) >= 0.7 * max(rates) > 0, each)  # fmt: skip
        self.add("the same: the longest wait for 16 steps, s", "<= 5", f"{waits:.1f}", waits <= 5)
        # Turns with the memory would not be needed: the bytes that both touch fit.
        self.add("the same: tokens demanded, of the time", "<= 0.2", f"{demanded:.2f}", demanded <= 0.2)
