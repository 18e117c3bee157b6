"""Finding codes: the all-reduce between the ranks, from inside the serving image."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "COLLECTIVE_OK",
        "ok",
        "The ranks reduce over the planned transport, and rightly",
        "Every size was summed correctly on every rank, and what NCCL says of itself and the counters agree with the "
        "plan.",
        "None needed.",
    ),
    Code(
        "COLLECTIVE_WHILE_SERVING",
        "fatal",
        "A rank serves, so no all-reduce was run",
        "The measurement would slow down what is being served, and what is being served would spoil the measurement.",
        "Run ansible-playbook cluster-down.yml first; or, to measure beside the model, repeat the command with "
        "-e collective_while_serving=true.",
    ),
    Code(
        "COLLECTIVE_ON_SOCKETS",
        "fatal",
        "NCCL fell back to sockets where RDMA is planned",
        "NCCL says nothing about it by default: the model is served, over TCP, at a fraction of the speed. It takes "
        "sockets when it finds no usable RDMA device in the container.",
        "Check in this order, on {node}: ansible-playbook site.yml passes; /dev/infiniband exists; the image brings "
        "libibverbs and the mlx5 provider (the evidence says what NCCL missed); then run collective.yml again.",
        ("NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "more NCCL channels"),
    ),
    Code(
        "COLLECTIVE_TRANSPORT_UNKNOWN",
        "warn",
        "NCCL did not say what it used",
        "Its log names neither a network nor a channel, so which transport carried the data is not known.",
        "Look into the image for what sets NCCL_DEBUG or redirects NCCL's log (/etc/nccl.conf), then run "
        "collective.yml again.",
    ),
    Code(
        "COLLECTIVE_HCA_UNUSED",
        "fatal",
        "NCCL does not use a planned HCA",
        "The device is in NCCL_IB_HCA and not in the list of those that NCCL took: it has no usable GID in the "
        "container, its port is down, or the image overrides the list. Half of the fabric lies idle.",
        "On {node}: check `rdma link` and run ansible-playbook site.yml, which resolves the GID of {device}; then run "
        "collective.yml again.",
    ),
    Code(
        "COLLECTIVE_RAIL_FLAT",
        "fatal",
        "One rail carried nothing",
        "The counters of the function did not move while the other one's did: half of the fabric lies idle.",
        "On {node}: run ansible-playbook site.yml, which measures both rails by themselves, then look at NCCL's log in "
        "the result file for the device of {netdev}.",
    ),
    Code(
        "COLLECTIVE_RAIL_UNEVEN",
        "warn",
        "One rail carried much less than the other",
        "NCCL deals its channels evenly to the devices, so both functions of a port should carry about the same.",
        "Run collective.yml again on an otherwise idle pair; if it stays, run ansible-playbook site.yml to measure "
        "both rails.",
    ),
    Code(
        "COLLECTIVE_COUNTERS_UNKNOWN",
        "note",
        "Which rails carried the data was not counted",
        "The functions have no counters of what they send over RDMA, so the shares of the rails are not known.",
        "None needed; on machines with ConnectX devices install ethtool.",
    ),
    Code(
        "COLLECTIVE_SUM_WRONG",
        "fatal",
        "An all-reduce gave a wrong sum",
        "Whole numbers that are exact in 16 bits came back as others. Nothing that is served over this can be trusted.",
        "Do not serve on this cluster. Run ansible-playbook site.yml and look at the error counters of both rails; try "
        "another build of the image.",
    ),
    Code(
        "COLLECTIVE_SLOW",
        "warn",
        "The all-reduce takes longer than it did elsewhere",
        "At the size of the model's activation a call waits mostly for the fabric's latency, many times a token.",
        "Check that nothing else loads the nodes, and that both have the same NCCL and firmware; then run "
        "ansible-playbook site.yml to measure the link by itself.",
    ),
    Code(
        "COLLECTIVE_SHARE_UNKNOWN",
        "note",
        "The share of the token budget is not known",
        "It takes the calls per token, which a recipe states with its source, the latency at the activation's size, "
        "and a rate of tokens.",
        "{cure}",
    ),
    Code(
        "COLLECTIVE_STALLED",
        "fatal",
        "The all-reduce made no progress",
        "The processes live and a step does not end: a rank waits for one that is stuck, or that it cannot reach.",
        "Check on every node that no firewall is between the rails (NCCL and gloo use high ports both ways), then run "
        "collective.yml again.",
    ),
)
