"""The registry of finding codes, one file per domain."""

from __future__ import annotations

from .change import CODES as CHANGE
from .code import Code
from .collective import CODES as COLLECTIVE
from .diagnose import CODES as DIAGNOSE
from .fabric import CODES as FABRIC
from .gid import CODES as GID
from .host import CODES as HOST
from .hub import CODES as HUB
from .image import CODES as IMAGE
from .link import CODES as LINK
from .model import CODES as MODEL
from .serving import CODES as SERVING
from .transfer import CODES as TRANSFER

DOMAINS: dict[str, tuple[Code, ...]] = {
    "host": HOST,
    "fabric": FABRIC,
    "change": CHANGE,
    "link": LINK,
    "collective": COLLECTIVE,
    "gid": GID,
    "diagnose": DIAGNOSE,
    "model": MODEL,
    "transfer": TRANSFER,
    "image": IMAGE,
    "hub": HUB,
    "serving": SERVING,
}

REGISTRY: dict[str, Code] = {code.code: code for codes in DOMAINS.values() for code in codes}

__all__ = ["DOMAINS", "REGISTRY", "Code"]
