"""Finding codes: the launcher, the ranks and the served model."""

from __future__ import annotations

from .code import Code

# What was changed in vain, in nine attempts, on a server whose build could not bear the wait for its shared-memory
# broadcast.
_NINE = (
    "engine watchdog raised from 300 to 1800 s",
    "smaller steps",
    "RoCE GID pinned",
    "breakable CUDA graphs",
    "no CUDA graphs",
    "memlock lifted",
    "three NCCL settings",
    "native multi-node instead of Ray",
    "pipeline instead of tensor parallel",
)

_LOG = "On {node}: sudo journalctl -u spark-rank -n 200 --no-pager"

CODES: tuple[Code, ...] = (
    Code(
        "UNKNOWN_CAUSE",
        "fatal",
        "A failure that matches no known cause",
        "Nothing that is known explains what was seen. The evidence is given as it was found; the nearest match would "
        "be a guess.",
        "Read the evidence below, then attach {attach} to a report.",
    ),
    # The launcher
    Code(
        "LAUNCHER_ALTERED",
        "fatal",
        "A launcher file was changed on the node",
        "Every rank starts from the same bytes. A file of the launcher differs from the manifest that was installed "
        "with it: edited by hand, "
        "truncated or gone.",
        "Run the command again with -e launcher_restore=true; the copy on {node} is kept in "
        "/var/lib/spark-cluster/backup.",
    ),
    Code(
        "LAUNCHER_RESTORED",
        "note",
        "An edited launcher file was replaced",
        "launcher_restore was set, so the file was replaced by the planned one.",
        "The edited copy on {node} is {backup}.",
    ),
    Code(
        "LAUNCHER_NOT_INSTALLED",
        "fatal",
        "The launcher is not on the node",
        "Without manifest and plan a node does not know what to start.",
        "Run ansible-playbook cluster-up.yml -e model=NAME for the whole cluster of {node}.",
    ),
    Code(
        "LAUNCHER_NOT_EQUAL",
        "fatal",
        "The installed launcher is not the controller's",
        "After installing, a file on the node has another hash than on the controller.",
        "Check the disk of {node} (sudo dmesg | tail), then run the command again.",
    ),
    # Before a start
    Code(
        "RANK_IMAGE_MISSING",
        "fatal",
        "The engine image is not on the node",
        "A rank never pulls: it would sit in a download while the others wait for it.",
        "Run cluster-up.yml again: its role image_sync brings the image to {node}.",
    ),
    Code(
        "RANK_IMAGE_DIFFERS",
        "fatal",
        "The engine image on the node is not the planned one",
        "The name is the same and the content is not. Ranks of one model must run the same bytes.",
        "Run cluster-up.yml again: its role image_sync compares the images and names the node to change; here it is "
        "{node}.",
    ),
    Code(
        "RANK_WEIGHTS_MISSING",
        "fatal",
        "The weights are not on the node",
        "Each node reads its own full copy.",
        "Run cluster-up.yml again: its role weights_sync copies them to {node}.",
    ),
    Code(
        "RANK_GID_INDEX_SPLIT",
        "fatal",
        "No single GID index serves every HCA",
        "gid_mode is index, and NCCL uses that one number unchecked on every HCA of a rank; here the HCAs need "
        "different ones.",
        "Set gid_mode: rule in the inventory for the cluster of {node}.",
    ),
    Code(
        "RANK_PORT_TAKEN",
        "fatal",
        "A port of the rank is in use",
        "Something else listens where this rank must.",
        "On {node}: sudo ss -ltnp shows who listens; stop it, or choose another api_port or master_port in the "
        "inventory.",
    ),
    Code(
        "RANK_MEMORY_SHORT",
        "fatal",
        "Not enough memory is available for the rank",
        "GPU and system share the memory; a rank that starts without room can take the machine down.",
        "On {node}: sudo sync; echo 3 | sudo tee /proc/sys/vm/drop_caches, and stop what uses the memory (ps aux "
        "--sort=-rss | head).",
    ),
    Code(
        "RANK_NAME_FOREIGN",
        "fatal",
        "A container that is not ours has the rank's name",
        "It was not started by this project, so it is not removed unasked.",
        "On {node}: sudo docker rename spark-rank spark-rank-old, after looking at it with sudo docker inspect "
        "spark-rank.",
    ),
    Code(
        "API_KEY_UNUSABLE",
        "fatal",
        "The API key's file cannot be used",
        "The key is read on the head at each start from a file that only root can read, with one line in it.",
        "On {node}: sudo install -m 0600 -o root /dev/stdin {path}, and type the key.",
    ),
    # A rank that died, or does not come up
    Code(
        "RANK_NEVER_JOINED",
        "fatal",
        "A rank never joined",
        "All ranks meet at the head's master port before anything is loaded. One did not come, or could not reach it.",
        "Check on {node} that the head answers on the first rail (ping) and that no firewall is between the nodes; "
        "then run cluster-up.yml again.",
    ),
    Code(
        "STALE_RANK",
        "fatal",
        "A rank of an earlier start is in the way",
        "A worker that joined an earlier head waits for that one for ever; a new head does not come up beside it.",
        "Run cluster-down.yml, which stops the rank on {node} as well, then cluster-up.yml.",
    ),
    Code(
        "RANK_STALLED",
        "fatal",
        "A rank makes no progress",
        "It lives, and neither its log, its reading, its memory nor its CPU time moves.",
        _LOG,
    ),
    Code(
        "RANK_VANISHED",
        "fatal",
        "A rank is no longer there",
        "Its container is gone and its unit is not active, although nobody stopped it through this project.",
        _LOG,
    ),
    Code(
        "RANK_KILLED",
        "fatal",
        "A rank was ended by a signal",
        "Its log names no cause: somebody or something outside the engine ended it.",
        "Look for who did it on {node}: sudo journalctl -n 100 --no-pager, sudo dmesg | tail; then run cluster-up.yml "
        "again.",
    ),
    Code(
        "PEER_RANK_DEAD",
        "fatal",
        "Another rank of the cluster died",
        "No rank can serve alone, so the wait for this one has ended as well.",
        "See the finding for the other node; {node} needs nothing.",
    ),
    Code(
        "PEER_LOST",
        "fatal",
        "The connection to another rank broke",
        "The other rank died, or the link to it was cut. The cause is in the other rank's log.",
        "Look at the other nodes' ranks first; on {node}: sudo journalctl -u spark-rank -n 200 --no-pager",
    ),
    Code(
        "ENGINE_FLAGS_WRONG",
        "fatal",
        "The engine does not know one of its arguments",
        "This build of the engine refuses the command line of the recipe: flags come and go between builds.",
        "Correct the recipe's flags for this image, or use the image that the recipe was written for; then run "
        "cluster-up.yml for {node}.",
    ),
    Code(
        "IMAGE_NOT_ON_NODE",
        "fatal",
        "Docker does not have the image",
        "Docker would have to pull it, and a rank never pulls.",
        "Run cluster-up.yml again: its role image_sync brings the image to {node}.",
    ),
    Code(
        "DEVICE_NOT_IN_DOCKER",
        "fatal",
        "Docker cannot give the container a device",
        "The GPU runtime is not set up, or a device file of the plan does not exist.",
        "On {node}: nvidia-ctk cdi list; ls -l /dev/infiniband; then sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml",
    ),
    Code(
        "SHM_TOO_SMALL",
        "fatal",
        "Shared memory is too small",
        "The ranks of one node talk through /dev/shm, and Docker gives a container 64 MB of it unless told otherwise.",
        "Raise shm_size in the recipe, or free /dev/shm on {node} (df -h /dev/shm).",
    ),
    Code(
        "RDMA_REGISTRATION_FAILED",
        "fatal",
        "The HCA cannot register memory",
        "NCCL could not register its buffers with the HCA. ib_write_bw may well work on the same machine: it "
        "registers other memory.",
        "On {node}: uname -r; with kernel 7.0.0-1019 boot 6.17.0-1032, or add kho=off to the kernel's command line. "
        "Check that memlock is "
        "unlimited in the container.",
    ),
    Code(
        "QP_NOT_CONNECTED",
        "fatal",
        "Two HCAs cannot connect",
        "The queue pair did not reach the ready state: the GID that was used has no route to the peer.",
        "Run ansible-playbook site.yml: it proves both rails and shows the GID that belongs to the address of {node}.",
        ("reseating the cable",),
    ),
    Code(
        "ADDRESS_NOT_RESOLVED",
        "fatal",
        "The node's own address could not be found",
        "The engine looked for its address by the host's name and fell back to the loopback, where no peer can reach "
        "it.",
        "Check that VLLM_HOST_IP and GLOO_SOCKET_IFNAME are in the environment in /run/spark-cluster/rank.json on "
        "{node}.",
    ),
    Code(
        "INTERFACE_WRONG",
        "fatal",
        "The named network interface cannot be used",
        "The interface in the environment does not exist on this node, or has no address.",
        "Run ansible-playbook site.yml: it finds the interfaces of {node} and sets their addresses.",
    ),
    Code(
        "ENGINE_OUT_OF_MEMORY",
        "fatal",
        "The engine ran out of memory",
        "Weights, cache and graphs did not fit in what was available.",
        "Lower gpu_memory_utilization, max_model_len or max_num_seqs of the recipe, or free memory on {node}; then "
        "run cluster-up.yml.",
    ),
    Code(
        "KERNEL_DOES_NOT_FIT",
        "fatal",
        "A kernel of the engine does not fit this GPU",
        "The image was not built for this GPU generation, or not for this quantisation on it.",
        "Use the image that the recipe pins. Nothing on {node} needs changing.",
        ("memory settings", "NCCL settings"),
    ),
    Code(
        "ENGINE_WEIGHTS_UNREADABLE",
        "fatal",
        "The engine cannot read the weights",
        "A shard is truncated or missing, or the folder is not a model.",
        "Run cluster-up.yml -e weights_verify=full: every byte on {node} is compared with its recorded hash.",
    ),
    Code(
        "SHM_BROADCAST_FATAL",
        "fatal",
        "The engine gave up waiting for a rank",
        "A call to the other ranks was not answered in time. A dead or cut-off rank looks like this; if all ranks "
        "live, it is this build of the "
        "engine, which ends where others go on waiting.",
        "Look at the other ranks first; if they live, use the image that the recipe pins. On {node}: sudo journalctl "
        "-u spark-rank -n 200 --no-pager",
        _NINE,
    ),
    Code(
        "SHM_BROADCAST_WAIT",
        "note",
        "The engine waited for its shared-memory broadcast",
        "An informational line: normal while a rank compiles or loads. Repeated while serving it means that a rank is "
        "stuck.",
        "Nothing to do while loading. While serving: compare the ranks' logs on {node} and its peers.",
    ),
    Code(
        "SOCKET_FALLBACK",
        "warn",
        "NCCL uses sockets instead of RDMA",
        "The ranks work, over TCP. Tokens per second suffer; the plan asks for RDMA.",
        "Run ansible-playbook site.yml to prove the RDMA devices of {node}, and check that the container has "
        "/dev/infiniband.",
    ),
    # The proof
    Code(
        "COMPLETION_OK",
        "ok",
        "The served model answered",
        "A real chat completion came back through every rank.",
        "",
    ),
    Code(
        "COMPLETION_FAILED",
        "fatal",
        "The served model does not answer a completion",
        "/health says only that the head's web server runs: it stays 200 with a dead worker. A completion needs every "
        "rank.",
        "Look for a dead rank (sudo systemctl status spark-rank on every node), then run cluster-down.yml and "
        "cluster-up.yml. The head is {node}.",
    ),
    Code(
        "COMPLETION_HANGS",
        "fatal",
        "A completion does not come back in time",
        "The head accepted the request and did not answer within the deadline: a rank is cut off or stuck, and the "
        "head will wait for minutes.",
        "Look for a stuck or dead rank (sudo journalctl -u spark-rank -n 50 on every node), then run cluster-down.yml "
        "and cluster-up.yml. "
        "The head is {node}.",
    ),
    Code(
        "API_UNREACHABLE",
        "fatal",
        "The API does not accept connections",
        "Nothing listens where the plan says.",
        "On {node}: sudo systemctl status spark-rank --no-pager; then run cluster-up.yml again.",
    ),
    Code(
        "API_KEY_REFUSED",
        "fatal",
        "The API refuses the key",
        "The server runs with another key than the file holds, or with one where the plan has none.",
        "Restart the ranks of {node} and its peers with cluster-down.yml and cluster-up.yml: the key is read at each "
        "start.",
    ),
    Code(
        "SERVED_NAME_MISSING",
        "fatal",
        "A planned model name is not served",
        "The API answers, but not under every name of the recipe.",
        "Run cluster-down.yml and cluster-up.yml; the head is {node}.",
    ),
    # The end
    Code(
        "RANK_STOPPED",
        "ok",
        "The rank is gone",
        "Unit, container, processes and ports were looked for and are gone.",
        "",
    ),
    Code(
        "RANK_NOT_STOPPED",
        "fatal",
        "Something of the rank is still there",
        "After stopping, a process, a container or a port of the rank was still found.",
        "On {node}: sudo docker rm -f spark-rank; sudo systemctl reset-failed spark-rank; then run cluster-down.yml "
        "again.",
    ),
)
