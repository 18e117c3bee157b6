"""Units: ``systemctl show`` and unit files, and which of them would take the GPU or the API's port."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_SERVES = re.compile(
    r"\bvllm\b|\bsglang\b|\bllama[-_]server\b|\bollama\b|\btext-generation-(?:launcher|inference)\b|\btrtllm-serve\b"
    r"|\btritonserver\b|\blmdeploy\b|\btabbyapi\b|\bmlc_llm\b|--tensor-parallel-size\b|--served-model-name\b"
    r"|\bnvcr\.io/nim/",
    re.IGNORECASE,
)
# A search for words is cheap where hundreds of units are looked through; the patterns then decide.
_ENGINES = ("vllm", "sglang", "llama", "generation", "trtllm", "triton", "lmdeploy", "tabby", "mlc", "nim/")
_SERVES_WORDS = (*_ENGINES, "tensor-parallel", "served-model")
_GPU_WORDS = ("gpu", "nvidia", "cuda")
_GPU = re.compile(
    r"--gpus\b|--runtime[= ]nvidia\b|\bnvidia\.com/gpu\b|\bCUDA_VISIBLE_DEVICES\b|\bNVIDIA_VISIBLE_DEVICES\b"
    r"|driver:\s*[\"']?nvidia\b|capabilities:\s*\[[^\]]*gpu",
    re.IGNORECASE,
)
_PORTS = (
    re.compile(r"(?<![\w-])--(?:api-|http-)?port[= ]\s*[\"']?(\d{2,5})\b"),
    re.compile(r"(?<![\w-])(?:-p|--publish)[= ]?\s*[\"']?(?:[\d.]+:)?(\d{2,5}):\d{2,5}\b"),
    re.compile(r"^\s*-\s*[\"']?(?:[\d.]+:)?(\d{2,5}):\d{2,5}[\"']?\s*$", re.MULTILINE),
    re.compile(r"\b[A-Z_]*PORT=[\"']?(\d{2,5})\b"),
    re.compile(r"\bOLLAMA_HOST=[\"']?[\w.]*:(\d{2,5})\b"),
)
_DIGITS = re.compile(r"\d\d")


def parse_show(text: str) -> dict[str, dict[str, str]]:
    """``systemctl show -p ... A B C`` by unit: records are separated by empty lines, properties may come in any order.

    Asked for several units at once systemd also answers for those that do not exist: their LoadState is ``not-found``.
    """
    units: dict[str, dict[str, str]] = {}
    for record in re.split(r"\n\s*\n", text.strip()):
        fields = dict(line.split("=", 1) for line in record.splitlines() if "=" in line)
        if "Id" in fields:
            units[fields["Id"]] = fields
    return units


def parse_unit_file(text: str) -> dict[str, list[str]]:
    """``Section.Key`` to its values in order. An empty assignment clears what came before, as systemd does."""
    values: dict[str, list[str]] = {}
    section, carried = "", ""
    for raw in text.splitlines():
        line = raw.strip()
        # Comments may stand between the lines of a continued value and end nothing.
        if line.startswith(("#", ";")):
            continue
        if line.endswith("\\"):
            carried += line[:-1] + " "
            continue
        line, carried = (carried + line).strip(), ""
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        if not equals:
            continue
        name = f"{section}.{key.strip()}"
        if value.strip():
            values.setdefault(name, []).append(value.strip())
        else:
            values[name] = []
    return values


def commands(unit: Mapping[str, list[str]]) -> list[str]:
    """What a service runs to start, without systemd's prefix characters."""
    return [re.sub(r"^[-@:+!|]+", "", line) for line in unit.get("Service.ExecStart", ())]


def serves_model(texts: Iterable[str]) -> bool:
    return any(_SERVES.search(text) for text in texts if _has_one(text, _SERVES_WORDS))


def uses_gpu(texts: Iterable[str]) -> bool:
    return any(_GPU.search(text) for text in texts if _has_one(text, _GPU_WORDS))


def ports(texts: Iterable[str]) -> list[int]:
    """Port numbers that a command line, its environment or a compose file names, in ascending order."""
    with_digits = [text for text in texts if _DIGITS.search(text)]
    found = {int(port) for text in with_digits for pattern in _PORTS for port in pattern.findall(text)}
    return sorted(port for port in found if 0 < port < 65536)


def _has_one(text: str, words: Iterable[str]) -> bool:
    lower = text.lower()
    return any(word in lower for word in words)
