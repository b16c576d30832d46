"""transformers' continuous batching as the engine of an inference server: a Llama with random weights, its paged cache,
its own thread. No tokenizer: prompts are token ids."""

import hashlib
import logging
import os
import struct
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
BLOCK = 256  # tokens


class Engine:
    deterministic = False  # the batch's shapes, and so its bits, depend on when requests arrive
    lowest_token = 0

    def __init__(self, torch, device, tiny, batches, longest, cache_bytes=None, live_bytes=None, reuse="last"):
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        logging.getLogger("transformers").setLevel(logging.ERROR)
        size = (
            {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16, "num_attention_heads": 4}
            if tiny
            else {
                "vocab_size": 128256,
                "hidden_size": 2048,
                "num_hidden_layers": 16,
                "head_dim": 64,
                "num_attention_heads": 32,
            }
        )
        kv_heads, self.vocabulary = 2 if tiny else 8, size["vocab_size"]
        config = LlamaConfig(
            **size,
            num_key_value_heads=kv_heads,
            intermediate_size=4 * size["hidden_size"],
            tie_word_embeddings=False,  # a tied one repeats its last token, whatever it read
            max_position_embeddings=max(4096, longest),
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            attn_implementation="paged|sdpa",
        )
        torch.manual_seed(7)
        torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
        with torch.device(device):
            self.model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        parameters = list(self.model.parameters())
        self.weight_bytes = sum(p.numel() * p.element_size() for p in parameters)
        block_bytes = BLOCK * size["num_hidden_layers"] * 2 * kv_heads * size["head_dim"] * parameters[0].element_size()
        # Beside the cache: masks of all tokens of the cache, in two sets, and a layer's gathered keys and values.
        rest, masks = 1 << 30, 4 * BLOCK * longest
        blocks = (
            cache_bytes // block_bytes
            if cache_bytes
            else (live_bytes - self.weight_bytes - rest) // (block_bytes + masks)
        )
        needed = max(batches) * -(-longest // BLOCK)
        if blocks < needed:
            raise SystemExit(f"serving: a cache of {blocks} blocks of {BLOCK} tokens; {needed} are needed")
        self.cache_bytes = blocks * block_bytes
        self.manager = self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=longest),
            continuous_batching_config=ContinuousBatchingConfig(
                block_size=BLOCK,
                num_blocks=blocks,
                max_batch_tokens=longest,
                max_requests_per_batch=max(batches),
                allow_block_sharing=False,
            ),
        )
        self.manager.warmup()
        self.manager.start()
        # Its times are of perf_counter.
        self.clock = time.monotonic() - time.perf_counter()

    def prepare(self, at_once):
        pass

    def submit(self, number, prompt, output):
        self.manager.add_request(prompt, request_id=str(number), max_new_tokens=output, record_timestamps=True)

    def poll(self):
        result = self.manager.get_result(timeout=0.02)
        if result is None:
            if not self.manager.is_running():
                raise RuntimeError(f"its thread ended: {self.manager.background_thread_status.fatal_error!r}")
            return []
        if result.error:
            raise RuntimeError(f"request {result.request_id}: {result.error}")
        if not result.is_finished():
            return []
        tokens = result.generated_tokens
        digest = hashlib.sha256(struct.pack(f"<{len(tokens)}i", *tokens)).hexdigest()[:16]
        times = [t + self.clock for t in result.timestamps]
        return [(int(result.request_id), result.created_time + self.clock, times, digest)]

    def close(self):
        self.manager.stop(block=True, timeout=10)
