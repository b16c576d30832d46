"""A Llama-shaped model with random weights as a GGUF file: gguf_model.py FILE [--tiny]. Needs llama.cpp's gguf package
(its folder gguf-py in PYTHONPATH). Its vocabulary is made up: servers get prompts as token ids.
"""

import sys

import gguf
import numpy

BYTES_FROM = 3  # tokens 3 to 258 are bytes, as llama.cpp's tokenizer requires
ROTATED = 1 << 22


def main():
    tiny = "--tiny" in sys.argv[2:]
    vocabulary, width, layers, heads, kv_heads, head = (512, 64, 2, 4, 2, 16) if tiny else (32000, 2048, 16, 32, 8, 64)
    inner = 4 * width
    out = gguf.GGUFWriter(sys.argv[1], "llama")
    out.add_context_length(1 << 20)
    out.add_embedding_length(width)
    out.add_block_count(layers)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(kv_heads)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(head)
    out.add_rope_freq_base(500000.0)
    out.add_vocab_size(vocabulary)
    out.add_file_type(1)  # mostly f16
    tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
    types = [2, 3, 3] + [6] * 256  # unknown, control, byte
    tokens += [f"\u2581t{i}".encode() for i in range(len(tokens), vocabulary)]
    types += [1] * (vocabulary - len(types))
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([-float(i) for i in range(vocabulary)])
    out.add_token_types(types)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)

    random = numpy.random.default_rng(7)
    block = (random.standard_normal(ROTATED + 4096, dtype=numpy.float32) * 0.02).astype(numpy.float16)

    def weight(name, rows, columns):
        """Parts of one block of random numbers, at another offset in each: billions of them would take a minute."""
        size = rows * columns
        parts = [block[at : at + ROTATED] for at in random.integers(0, 4096, -(-size // ROTATED))]
        out.add_tensor(name + ".weight", numpy.concatenate(parts)[:size].reshape(rows, columns))

    def norm(name):
        out.add_tensor(name + ".weight", numpy.ones(width, dtype=numpy.float32))

    weight("token_embd", vocabulary, width)
    weight("output", vocabulary, width)
    norm("output_norm")
    for i in range(layers):
        norm(f"blk.{i}.attn_norm")
        norm(f"blk.{i}.ffn_norm")
        weight(f"blk.{i}.attn_q", heads * head, width)
        weight(f"blk.{i}.attn_k", kv_heads * head, width)
        weight(f"blk.{i}.attn_v", kv_heads * head, width)
        weight(f"blk.{i}.attn_output", width, heads * head)
        weight(f"blk.{i}.ffn_gate", inner, width)
        weight(f"blk.{i}.ffn_up", inner, width)
        weight(f"blk.{i}.ffn_down", width, inner)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


main()
