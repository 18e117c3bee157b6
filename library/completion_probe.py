#!/usr/bin/python
"""Prove a served model by a real chat completion."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark.openai import Client
from ansible.module_utils.spark.probe import probe
from ansible.module_utils.spark.rank import HERE, read_api_key
from ansible.module_utils.spark_module import finish

DOCUMENTATION = r"""
---
module: completion_probe
short_description: Prove a served model by a real chat completion with a deadline
description:
  - Asks for a whole answer and a streamed one, and under every served name, on the node where it runs. What counts is
    the server's own count of tokens; an error inside a stream is a failure although the transport ends well.
  - C(/health) is asked only to be quoted when a completion fails, for it stays 200 with a dead worker.
options:
  base_url:
    description: Address of the API as seen from this node, with or without C(/v1).
    type: str
    required: true
  served_names:
    description: Names under which the model must answer. All that the API lists, if empty.
    type: list
    elements: str
    default: []
  deadline_s:
    description: Time for the whole proof.
    type: float
    default: 120
  api_key_file:
    description: File with the key, readable by root only. No key if empty.
    type: str
    default: ""
  question:
    description: What is asked.
    type: str
    default: Say hello in one sentence.
  max_tokens:
    description: Limit of the answer.
    type: int
    default: 64
  node:
    description: Name of the head, for findings.
    type: str
    default: head
attributes:
  check_mode:
    description: A completion loads the model, so check mode says that nothing was proven.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
author:
  - dgx-spark-cluster
"""

EXAMPLES = r"""
- name: Ask the model
  completion_probe:
    base_url: http://127.0.0.1:8000
    served_names: [deepseek-v4-flash]
"""

RETURN = r"""
measurements:
  description: Question, answer, token counts, latency, time to first token.
  returned: success
  type: dict
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "base_url": {"type": "str", "required": True},
            "served_names": {"type": "list", "elements": "str", "default": []},
            "deadline_s": {"type": "float", "default": 120},
            "api_key_file": {"type": "str", "default": "", "no_log": False},
            "question": {"type": "str", "default": "Say hello in one sentence."},
            "max_tokens": {"type": "int", "default": 64},
            "node": {"type": "str", "default": "head"},
        },
        supports_check_mode=True,
    )
    params = module.params
    node = params["node"]
    if module.check_mode:
        found = "no completion was asked for"
        expected = "a chat completion with at least one token"
        finish(module, findings=[finding("NOT_PROVEN_IN_CHECK_MODE", node=node, found=found, expected=expected)])
    key = ""
    if params["api_key_file"]:
        wrong, key = read_api_key(HERE, node, params["api_key_file"])
        if wrong:
            finish(module, findings=wrong)
    try:
        client = Client(params["base_url"], key)
    except ValueError as error:
        module.fail_json(msg=str(error))
    said, measured = probe(
        client,
        params["served_names"],
        node=node,
        deadline_s=params["deadline_s"],
        text=params["question"],
        max_tokens=params["max_tokens"],
    )
    finish(module, findings=said, measurements={"completion": measured} if measured else {})


if __name__ == "__main__":
    main()
