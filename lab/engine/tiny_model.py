"""lab-tiny: a Llama of 7 MB that answers in a sentence, made from nothing.

Token embeddings are one-hot and the output head maps each token to its successor, so that decoding walks along
SENTENCE. Attention and MLP hold noise too small to change that: the engine computes all that it would compute for a
real model. With two ranks each holds half of the vocabulary, and the words come from both halves in turn: a readable
answer is proof that both ranks took part.
"""

from __future__ import annotations

import json
import random
import struct
from functools import lru_cache

NAME = "lab-tiny"
SENTENCE = ("Hello", " from", " two", " Sparks", " that", " answer", " as", " one", ".")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
STOP = SPECIAL.index("<|im_end|>")
FIRST_LOW, FIRST_BYTE, FIRST_HIGH = 3, 16, 300

VOCABULARY = HIDDEN = MLP = 512
LAYERS, HEADS, KV_HEADS = 2, 8, 2
HEAD = HIDDEN // HEADS
CONTEXT = 2048
SHARDS = 2

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Tensor = tuple[tuple[int, ...], bytes]


@lru_cache(maxsize=1)
def files() -> dict[str, bytes]:
    """The model's folder: {name: content}, the same bytes every time."""
    return {**configuration(), **tokenizer(), **shards()}


def _json(data: object) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def configuration() -> dict[str, bytes]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": STOP,
        "pad_token_id": 0,
    }
    generation = {"eos_token_id": STOP, "pad_token_id": 0}
    return {"config.json": _json(config), "generation_config.json": _json(generation)}


# --- tokens


def word_ids() -> list[int]:
    """Ids of the words of SENTENCE, in turn from the lower and the upper half of the vocabulary."""
    ids = [(FIRST_HIGH if i % 2 else FIRST_LOW) + i for i in range(len(SENTENCE))]
    # A word of one byte is a token already.
    return [FIRST_BYTE + ord(word) if len(word) == 1 else ids[i] for i, word in enumerate(SENTENCE)]


def successor(token: int) -> int:
    """The token that the model says after this one; after anything outside the sentence, the sentence begins."""
    words = word_ids()
    if token not in words:
        return words[0]
    at = words.index(token) + 1
    return words[at] if at < len(words) else STOP


def byte_alphabet() -> list[str]:
    """The printable character by which byte-level BPE writes each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def tokenizer() -> dict[str, bytes]:
    alphabet = byte_alphabet()
    vocabulary = {token: number for number, token in enumerate(SPECIAL)}
    vocabulary.update({character: FIRST_BYTE + byte for byte, character in enumerate(alphabet)})
    spelled = ("".join(alphabet[byte] for byte in word.encode()) for word in SENTENCE)
    vocabulary.update(zip(spelled, word_ids(), strict=True))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(SPECIAL)
    ]
    model: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": dict(sorted(vocabulary.items(), key=lambda item: item[1])),
        "merges": [],
    }
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": model,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "eos_token": SPECIAL[STOP],
        "pad_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    return {"tokenizer.json": _json(whole), "tokenizer_config.json": _json(settings)}


# --- weights, in bfloat16


def _bf16(value: float) -> bytes:
    return struct.pack("<f", value)[2:]


def sparse(cells: dict[tuple[int, int], float], rows: int, columns: int) -> Tensor:
    data = bytearray(2 * rows * columns)
    for (row, column), value in cells.items():
        at = 2 * (row * columns + column)
        data[at : at + 2] = _bf16(value)
    return (rows, columns), bytes(data)


def noise(rng: random.Random, rows: int, columns: int) -> Tensor:
    """Values between 2^-7 and 2^-6 of either sign, by drawing mantissa and sign instead of numbers."""
    count = rows * columns
    data = bytearray(2 * count)
    data[0::2] = rng.randbytes(count).translate(bytes(byte & 0x7F for byte in range(256)))
    data[1::2] = rng.randbytes(count).translate(bytes(0x3C if byte < 128 else 0xBC for byte in range(256)))
    return (rows, columns), bytes(data)


def ones(count: int) -> Tensor:
    return (count,), _bf16(1.0) * count


def tensors() -> dict[str, Tensor]:
    rng = random.Random(NAME)  # noqa: S311 - the same weights every time are the point
    named = {"model.embed_tokens.weight": sparse({(t, t): 8.0 for t in range(VOCABULARY)}, VOCABULARY, HIDDEN)}
    kv = KV_HEADS * HEAD
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        named.update({f"{prefix}{name}.weight": noise(rng, *shape) for name, shape in shapes.items()})
        named.update(
            {f"{prefix}{name}.weight": ones(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")}
        )
    named["model.norm.weight"] = ones(HIDDEN)
    named["lm_head.weight"] = sparse({(successor(t), t): 1.0 for t in range(VOCABULARY)}, VOCABULARY, HIDDEN)
    return named


def safetensors(named: dict[str, Tensor]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, data) in named.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, data in named.values())


def shards() -> dict[str, bytes]:
    """The weights in several files with their index, as published models come."""
    named = list(tensors().items())
    size = -(-len(named) // SHARDS)
    found: dict[str, bytes] = {}
    where: dict[str, str] = {}
    for number in range(SHARDS):
        part = dict(named[number * size : (number + 1) * size])
        name = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        found[name] = safetensors(part)
        where.update(dict.fromkeys(part, name))
    total = sum(len(data) for _, (_, data) in named)
    found["model.safetensors.index.json"] = _json({"metadata": {"total_size": total}, "weight_map": where})
    return found
