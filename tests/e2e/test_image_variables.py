"""What becomes of variables that an image bakes in, with a real Docker and the command line's way of naming them."""

from __future__ import annotations

import pytest

from .virtual_pair import VirtualPair

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NODE = "spark-01"
# One program and its libraries make an image; its variables are those of somebody else's machines.
IMAGE = """
tar -ch /usr/bin/env $(ldd /usr/bin/env | grep -o '/[^ ]*') 2>/dev/null |
docker import --change 'ENV NCCL_NET=Socket' --change 'ENV NCCL_IB_HCA=mlx5_0' --change 'ENV KEPT=yes' - baked:1
"""
# As the launcher does it: docker's client takes values from its own environment, and a name alone has none.
RUN = """
env -i PATH="$PATH" NCCL_IB_HCA==rocep1s0f0 docker run --rm --network none {names} --entrypoint /usr/bin/env baked:1
"""


@pytest.fixture(scope="module")
def image(bare_pair: VirtualPair) -> VirtualPair:
    bare_pair.sh(NODE, IMAGE)
    return bare_pair


def variables(pair: VirtualPair, names: str) -> dict[str, str]:
    told = pair.sh(NODE, RUN.format(names=names)).splitlines()
    return dict(line.split("=", 1) for line in told if "=" in line)


def test_a_name_without_a_value_removes_and_one_with_a_value_overrules(image: VirtualPair) -> None:
    assert variables(image, "")["NCCL_NET"] == "Socket"
    found = variables(image, "--env NCCL_NET --env NCCL_IB_HCA")
    assert "NCCL_NET" not in found, "removed, which is not the same as empty"
    assert found["NCCL_IB_HCA"] == "=rocep1s0f0"
    assert found["KEPT"] == "yes"
