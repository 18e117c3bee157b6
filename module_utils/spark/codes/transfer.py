"""Finding codes: trust between the nodes, jobs, and the copies of weights and images."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    # Trust between the nodes
    Code(
        "PEER_REACHED",
        "ok",
        "The other node answers over the fabric",
        "A new ssh connection with this cluster's own key and recorded host key reached the forced command of "
        "the other node.",
        "",
    ),
    Code(
        "PEER_KEY_BROKEN",
        "fatal",
        "This node's own ssh key cannot be used",
        "The key that the nodes use among themselves is there, but ssh-keygen cannot read it. It is not replaced "
        "unasked: the other nodes trust the old one.",
        "On {node}: sudo rm {path} {path}.pub, then run site.yml again: a new key is made and exchanged.",
    ),
    Code(
        "PEER_HOST_KEYS_MISSING",
        "fatal",
        "The node has no ssh host keys",
        "The other nodes check whom they talk to by the host keys in /etc/ssh. None could be read.",
        "On {node}: sudo ssh-keygen -A && sudo systemctl restart ssh, then run site.yml again.",
    ),
    Code(
        "PEER_KEY_UNRESTRICTED",
        "fatal",
        "Another line trusts the peer's key without its forced command",
        "sshd takes the first line that matches a key, so a plain line for the same key would hand out a root "
        "shell and hide the restricted one. Lines that are not ours are never changed.",
        "On {node}: remove line {line} of {path}, then run site.yml again.",
    ),
    Code(
        "PEER_ROOT_LOGIN_REFUSED",
        "fatal",
        "sshd does not let root in with a key",
        "The copies run as root under a forced command. sshd's effective configuration for connections from the "
        "fabric forbids it.",
        "On {node}: printf 'Match Address {addresses}\\n    PermitRootLogin forced-commands-only\\n    "
        "PubkeyAuthentication yes\\n' | sudo tee /etc/ssh/sshd_config.d/10-spark-fabric.conf && sudo systemctl "
        "reload ssh",
        ("PermitRootLogin yes for every address",),
    ),
    Code(
        "PEER_UNREACHABLE",
        "fatal",
        "The other node does not answer over the fabric",
        "No ssh connection to the other node's fabric address came about.",
        "On {node}: ping -c 3 {address}; then check that sshd on the other node listens on that address (ss -ltn "
        "'sport = :22') and that no firewall drops it.",
    ),
    Code(
        "PEER_HOST_KEY_CHANGED",
        "fatal",
        "The other node shows a host key that was not recorded",
        "The host keys were exchanged through the controller. What answers on the fabric address now shows "
        "another one: the node was installed anew, or something else has its address.",
        "If the other node was installed anew, run site.yml again: it records the new key. If not, find out what "
        "holds {address}.",
    ),
    Code(
        "PEER_KEY_REFUSED",
        "fatal",
        "The other node refuses this node's key",
        "ssh got an answer, and the key was not accepted: the line in authorized_keys is missing, its address "
        "list does not hold the address we come from, or sshd does not take keys for root.",
        "Run site.yml again; if it stays, on the other node: sudo journalctl -u ssh -n 20",
    ),
    Code(
        "PEER_REFUSED",
        "fatal",
        "The other node refuses the request",
        "The forced command of the other node allows a few requests and refuses everything else.",
        "Run site.yml again: it installs the same command and the same folders on all nodes.",
    ),
    # Jobs
    Code(
        "JOB_DIED",
        "fatal",
        "A job ended without saying how",
        "The unit of the job is gone and its status still says that it runs: it was killed, the memory ran out, "
        "or the node was restarted.",
        "Repeat the command: what was done already is kept. If it dies again, on {node}: sudo journalctl -u "
        "{unit} -n 50",
    ),
    Code(
        "JOB_CONFLICT",
        "fatal",
        "Another job of that name is running",
        "A job with the same name and other instructions runs on the node, started by another run of the playbook.",
        "Wait for it, or stop it on {node}: sudo systemctl stop {unit}",
    ),
    Code(
        "JOB_CANCELLED",
        "warn",
        "A job was stopped on request",
        "Somebody asked for the job to be stopped. What was copied so far is kept and used the next time.",
        "Repeat the command when you want it done.",
    ),
    # Copies
    Code(
        "TOOL_MISSING",
        "fatal",
        "A program is missing on the node",
        "The copy needs a program that DGX OS ships and this node does not have.",
        "On {node}: sudo apt-get install {package}",
    ),
    Code(
        "DISK_FULL",
        "fatal",
        "Not enough room on the disk",
        "The copy would not fit, or did not fit. Nothing half-copied lies under a real name.",
        "On {node}: free {short} below {path} (sudo du -xh --max-depth=2 {path} | sort -h | tail), or set "
        "models_dir to a larger disk.",
    ),
    Code(
        "COPY_STALLED",
        "fatal",
        "A copy stopped moving",
        "The connection stood, and no byte moved for a whole minute, on every rail that was tried.",
        "Run site.yml: it proves both rails. Then repeat the command: what was copied is kept.",
        ("longer time limits",),
    ),
    Code(
        "COPY_RAIL_CHANGED",
        "warn",
        "A copy went on over another rail",
        "A stream broke or stood still, was closed, and its file went on over another stream, on the other rail where "
        "there is one. The evidence names the stream, its rail and where it stood.",
        "Run site.yml: it proves both rails and says which one is at fault.",
    ),
    Code(
        "COPY_FALLBACK",
        "warn",
        "rsync over ssh carried the copy",
        "No rail carried the copy's own streams: a firewall drops their ports, or the rails are at fault. rsync over "
        "ssh, on one rail, does the same work several times slower.",
        "Run site.yml: it proves both rails. If they are well, let the nodes' fabric addresses through the firewall "
        "among themselves, for example on each node: sudo ufw allow from <address of the other node>",
    ),
    Code(
        "COPY_REFUSED",
        "fatal",
        "The ends of a copy do not accept each other",
        "Each end shows a certificate of one day, or a secret, that the controller made for this copy only. The other "
        "end showed another one, or a clock is off by more than a day.",
        "Compare date -u on all nodes and the controller, then repeat the command. If it stays, find out what else "
        "holds the other node's fabric address.",
    ),
    Code(
        "COPY_FOREIGN",
        "warn",
        "Somebody else connected to a copy",
        "The receiver listens on its fabric addresses while a copy runs, and takes connections from the source only. "
        "Others were closed before a byte was read.",
        "Nothing has to be done for the copy. Find out who holds the address: nobody but the nodes belongs on the "
        "fabric.",
    ),
    Code(
        "COPY_REPEATED",
        "warn",
        "A file arrived damaged and was sent again",
        "The hash of what arrived was not that of the file, and the file itself is well: memory, link or network "
        "changed a bit on the way. The second try was right.",
        "Run site.yml: it proves both rails and reads their error counters.",
    ),
    Code(
        "COPY_DIFFERS",
        "fatal",
        "A file arrives damaged each time",
        "The file is well at the source and was not at the target, twice: memory or link changes bits.",
        "Run site.yml for the link. Then on {node}: sudo dmesg | grep -iE 'error|mce|ecc|nvme'",
    ),
    Code(
        "COPY_SOURCE_DAMAGED",
        "fatal",
        "A file of the source is not what its hash says",
        "Its size and time are those for which the hash is known, its contents are not: the disk changed, or it never "
        "was what its publisher's metadata says.",
        "On {node}: fetch {path} again; a read error of the disk is in sudo dmesg.",
    ),
    Code(
        "COPY_WRITE_FAILED",
        "fatal",
        "The disk of the target does not take the copy",
        "Writing failed for another reason than room.",
        "On {node}: look at {path} (owner, mount options, sudo dmesg), then repeat the command: what was copied is "
        "kept.",
    ),
    # Weights
    Code(
        "WEIGHTS_VERIFIED",
        "ok",
        "The weights are the same on this node",
        "Every file has the SHA-256 that was recorded at the source.",
        "",
    ),
    Code(
        "WEIGHTS_MISSING",
        "fatal",
        "No node has the weights",
        "Weights are copied from a node that has them; they are not downloaded unasked.",
        "Put them on one node: {get}. Then repeat the command: the other nodes get their copy from there.",
    ),
    Code(
        "WEIGHTS_EMPTY",
        "fatal",
        "Weight files are empty",
        "Files of weights with no bytes in them: a copy of a Hugging Face cache that left the blobs behind looks "
        "like this.",
        "On {node}: fetch {path} again; when copying a Hugging Face cache by hand, copy the whole models-- "
        "folder or use cp -rL.",
    ),
    Code(
        "WEIGHTS_TRUNCATED",
        "fatal",
        "A weight file is damaged",
        "The header of a safetensors file says how long the file is, and the file is not.",
        "On {node}: fetch {path} again.",
    ),
    Code(
        "WEIGHTS_INCOMPLETE",
        "fatal",
        "The folder of weights is not complete",
        "The index names files that are not there, or a download has not ended.",
        "On {node}: let the download of {path} end, or fetch it again.",
    ),
    Code(
        "WEIGHTS_PUBLISHER_DIFFERS",
        "fatal",
        "Files are not what their publisher published",
        "The download recorded the hash of each file, and what lies there now has another one: the download was cut "
        "off and padded, the disk changed it, or somebody edited it.",
        "On {node}: fetch {path} again; if a file was changed on purpose, keep the model in a folder without the "
        "download's records (.cache/huggingface).",
    ),
    Code(
        "WEIGHTS_REVISION_DIFFERS",
        "fatal",
        "The weights are of another revision",
        "The recipe pins a commit, and the download on the node recorded another one. Numbers measured with one do not "
        "hold for the other.",
        "On {node}: fetch revision {revision} into {path}, or change the recipe's weights.revision.",
    ),
    Code(
        "WEIGHTS_REVISION_UNKNOWN",
        "note",
        "The revision of the weights is not recorded",
        "The recipe pins a commit, and the folder was not made by a download that records one. The copies are equal "
        "all the same.",
        "Nothing has to be done. A folder fetched with hf download --local-dir records its revision.",
    ),
    Code(
        "WEIGHTS_UNPINNED",
        "warn",
        "The weights follow a name that moves",
        "The recipe pins no commit, so the next download of the same name may bring other weights, and nobody would "
        "notice.",
        "In the recipe set weights.revision: {commit}",
    ),
    Code(
        "WEIGHTS_OWNER",
        "warn",
        "Weights belong to somebody else",
        "A download in a container leaves files that belong to root; their user can neither update nor remove them.",
        "On {node}: sudo chown -hR {owner} {path}",
    ),
    Code(
        "WEIGHTS_LINK_DANGLING",
        "fatal",
        "A link points to nothing",
        "A link in the folder of weights has no target, so a copy would look complete and hold no weights.",
        "On {node}: fetch {path} again, or remove the link.",
    ),
    Code(
        "WEIGHTS_LINK_ESCAPES",
        "fatal",
        "A link leaves the folder of weights",
        "The container sees this folder only: a link to somewhere else, or with an absolute path, would point to "
        "nothing inside it.",
        "On {node}: cp -rL {path} {path}.whole, then move {path}.whole to where {path} was. For a Hugging Face "
        "cache, name the models-- folder instead of its snapshot.",
    ),
    Code(
        "WEIGHTS_UNREADABLE",
        "fatal",
        "Something in the folder of weights cannot be read",
        "Not a regular file, folder or link, or the disk gave an error.",
        "On {node}: look at {path}; a read error of the disk is in sudo dmesg.",
    ),
    Code(
        "WEIGHTS_CHANGING",
        "fatal",
        "A weight file changed while it was read",
        "Its size or time was different after reading: a download or another copy is writing into the folder.",
        "On {node}: wait until nothing writes into {path} (sudo lsof +D {path}), then repeat the command.",
    ),
    Code(
        "WEIGHTS_DIFFER",
        "fatal",
        "The weights differ from the source",
        "After the copy a file still has another SHA-256 than at the source: a fault of memory, disk or link, or "
        "a file that somebody writes.",
        "Repeat the command; if the same file differs again, read it twice on {node}: sha256sum {path}",
    ),
    Code(
        "WEIGHTS_EXTRA",
        "warn",
        "The folder holds files that the source does not have",
        "They are left alone. An engine that loads every file it finds may load them on this node only.",
        "On {node}, if nobody needs them: sudo rm {paths}",
    ),
    Code(
        "WEIGHTS_REPLACED",
        "note",
        "Files that differed from the source were replaced",
        "The node had files of the same names with other contents. The small ones, which somebody may have "
        "edited, are kept; a shard that differs is a damaged or foreign copy and is not.",
        "If one of them was edited on purpose: edit it on {source}, from where all nodes get it. The former ones "
        "are in {backup} on {node}.",
    ),
)
