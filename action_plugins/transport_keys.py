"""Certificates, or a secret, for one copy between two nodes: made on the controller, of use for a day and for nothing
else.
"""

from __future__ import annotations

import datetime
import secrets
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark.transport.channel import fingerprint  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402
from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.x509.oid import NameOID  # noqa: E402

DOCUMENTATION = """
name: transport_keys
short_description: Make what the two ends of a copy prove themselves with
description:
  - Returns C(keys) with C(sender) and C(receiver), each what that end has to know and no record may show, so the task
    needs C(no_log), and C(session), which names this pair of keys and may be shown. Runs nothing on the node.
options:
  source_node:
    description: Name of the node that sends.
    type: str
    required: true
  node:
    description: Name of the node that receives.
    type: str
    required: true
  encrypt:
    description: Whether to make certificates for TLS, or a secret for a copy in the clear.
    type: bool
    default: true
"""

LIFE = datetime.timedelta(days=1)
# A node's clock may be behind the controller's, and a certificate must not lie in its future.
BACK = datetime.timedelta(hours=12)


def self_signed(name: str) -> tuple[str, str]:
    """A certificate and its key, PEM. Each end pins the other's, so nobody has to sign."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACK)
        .not_valid_after(now - BACK + LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def make(source_node: str, node: str, *, encrypt: bool) -> dict[str, Any]:
    if not encrypt:
        secret = secrets.token_hex(32)
        return {
            "sender": {"secret": secret},
            "receiver": {"secret": secret},
            "session": f"plain {secrets.token_hex(8)}",
        }
    (sender, sender_key), (receiver, receiver_key) = self_signed(source_node), self_signed(node)
    return {
        "sender": {"certificate": sender, "key": sender_key, "peer": receiver},
        "receiver": {"certificate": receiver, "key": receiver_key, "peer": sender},
        "session": f"tls {fingerprint(sender)[:16]} {fingerprint(receiver)[:16]}",
    }


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"source_node", "node", "encrypt"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = self._task.args
        keys = make(str(args["source_node"]), str(args["node"]), encrypt=bool(args.get("encrypt", True)))
        return {**result, "changed": False, "keys": keys, "module_executions": {"modules": 0, "polls": 0}}
