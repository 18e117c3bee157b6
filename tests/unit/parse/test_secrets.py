"""What must not become a fact, and what must stay readable beside it."""

from __future__ import annotations

import pytest
from ansible.module_utils.spark.parse.secrets import hide


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("-e HF_TOKEN=abc -e A=1", "-e HF_TOKEN=(hidden) -e A=1"),
        ("HUGGING_FACE_HUB_TOKEN='a b' vllm", "HUGGING_FACE_HUB_TOKEN=(hidden) vllm"),
        ("vllm serve m --api-key abc --port 1", "vllm serve m --api-key (hidden) --port 1"),
        ('vllm serve m --api-key="a b" --port 1', "vllm serve m --api-key=(hidden) --port 1"),
        ("DB_PASSWORD=x", "DB_PASSWORD=(hidden)"),
        ("curl -H x sk-0123456789abcdefXYZ", "curl -H x (hidden)"),
        ("login hf_ABCDEFGHIJKLMNOPQRST now", "login (hidden) now"),
        ("use github_pat_11ABCDEFG0123456789 now", "use (hidden) now"),
        (f"cookie eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.{'s' * 342} now", "cookie (hidden) now"),
    ],
)
def test_secrets_are_hidden(text: str, hidden: str) -> None:
    assert hide(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve --max-num-batched-tokens 8192 --tokenizer-mode auto",
        "vllm serve --tokenizer /models/x --port 8000",
        "NCCL_DEBUG=INFO",
        "--kv-cache-dtype fp8 sk-1 hf_cache",
    ],
)
def test_what_only_sounds_like_one_stays(text: str) -> None:
    assert hide(text) == text
