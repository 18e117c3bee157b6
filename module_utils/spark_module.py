"""Glue between the modules in ``library/`` and the pure package ``spark``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark.findings import Finding, fatal, render


def finish(
    module: AnsibleModule,
    *,
    changed: bool = False,
    findings: Iterable[Finding] = (),
    measurements: Mapping[str, Any] | None = None,
    diff: list[dict[str, Any]] | dict[str, Any] | None = None,
    **result: Any,
) -> NoReturn:
    """Leave the module: successfully, or, when a finding is fatal, with that finding as the message.

    ``findings`` and ``measurements`` are picked up by the callback that writes the result file, from failed tasks
    as well.
    """
    said = list(findings)
    payload: dict[str, Any] = {"changed": changed, "findings": [f.as_dict() for f in said], **result}
    if measurements is not None:
        payload["measurements"] = dict(measurements)
    if diff is not None:
        payload["diff"] = diff
    stopping = fatal(said)
    if stopping:
        module.fail_json(msg="\n".join(render(f) for f in stopping), **payload)
    module.exit_json(**payload)
    raise AssertionError("exit_json returned")
