"""llama.cpp's server as the engine: a child process, asked by HTTP, whose tokens arrive as a stream.

SERVING_LLAMA names the folder with bin/llama-server and model.gguf (test/gpu/llama_build makes both),
SERVING_LLAMA_LIBRARIES the folders of the CUDA libraries, where the loader does not find them,
SERVING_LLAMA_FLASH_ATTENTION off switches flash attention off (on).
"""

import hashlib
import http.client
import json
import os
import pathlib
import queue
import socket
import subprocess
import sys
import threading
import time

START_S = 100


class Engine:
    deterministic = False  # its batches depend on when requests arrive
    lowest_token = 300  # those below are control tokens and bytes

    def __init__(self, torch, device, tiny, batches, longest, cache_bytes=None, live_bytes=None, reuse="last"):
        folder = pathlib.Path(os.environ["SERVING_LLAMA"])
        self.vocabulary, layers, kv_width = (512, 2, 32) if tiny else (32000, 16, 512)
        token_bytes = layers * 2 * kv_width * 2
        self.weight_bytes = (folder / "model.gguf").stat().st_size
        slots = max(batches)
        needed = slots * longest * token_bytes
        wanted = cache_bytes or live_bytes - self.weight_bytes - (512 << 20)
        if wanted < needed:
            raise SystemExit(f"serving: a cache of {wanted >> 20} MiB; {needed >> 20} are needed")
        each = wanted // token_bytes // slots // 256 * 256  # of a slot, in its server's steps
        self.cache_bytes = each * slots * token_bytes
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [folder / "bin" / "llama-server", "--model", folder / "model.gguf", "--host", "127.0.0.1"]
        command += ["--port", self.port, "--ctx-size", each * slots, "--parallel", slots, "--fit", "off"]
        # Without flash attention the cache's values are transposed: a token then touches all pages of its slot.
        flash_attention = os.environ.get("SERVING_LLAMA_FLASH_ATTENTION", "on")
        command += ["--n-gpu-layers", 0 if device == "cpu" else 99, "--no-warmup", "--flash-attn", flash_attention]
        command += ["--cache-ram", 0]  # no prompts kept in host memory
        env = dict(os.environ)
        if libraries := env.get("SERVING_LLAMA_LIBRARIES"):
            env["LD_LIBRARY_PATH"] = ":".join(filter(None, (libraries, env.get("LD_LIBRARY_PATH"))))
        # Its log goes to stderr: stdout is the orders' answers.
        self.server = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env)
        self.ended = queue.Queue()
        end = time.monotonic() + START_S
        while not self._healthy():
            if self.server.poll() is not None or time.monotonic() > end:
                self.close()
                raise SystemExit(f"serving: llama-server is not ready, status {self.server.poll()}")
            time.sleep(0.1)

    def _healthy(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def prepare(self, at_once):
        pass

    def submit(self, number, prompt, output):
        threading.Thread(target=self._ask, args=(number, prompt, output, time.monotonic()), daemon=True).start()

    def _ask(self, number, prompt, output, arrived):
        try:
            body = {
                "prompt": prompt,
                "n_predict": output,
                "stream": True,
                "temperature": 0,
                "top_k": 1,
                "ignore_eos": True,
                "cache_prompt": False,
                "return_tokens": True,
            }
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"HTTP {answer.status}: {answer.read(300)!r}")
            times, tokens, made = [], [], 0
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    new = event.get("tokens") or []
                    times += [time.monotonic()] * len(new)
                    tokens += new
                    made = event.get("tokens_predicted", made)
            if made != output:
                raise RuntimeError(f"{made} tokens of {output}")
            # The server does not send the bytes of an unfinished letter, nor their token.
            times += [time.monotonic()] * (output - len(tokens))
            self.ended.put((number, arrived, times, hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]))
        except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
            self.ended.put(f"request {number}: {error!r}")

    def poll(self):
        try:
            request = self.ended.get(timeout=0.02)
        except queue.Empty:
            if self.server.poll() is not None:
                raise RuntimeError(f"llama-server ended, status {self.server.poll()}") from None
            return []
        if isinstance(request, str):
            raise RuntimeError(request)
        return [request]

    def close(self):
        self.server.terminate()
        try:
            self.server.wait(8)
        except subprocess.TimeoutExpired:
            self.server.kill()
