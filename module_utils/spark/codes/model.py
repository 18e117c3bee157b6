"""Finding codes: the inventory, the plan of a cluster, and whether a model fits it."""

from __future__ import annotations

from .code import Code

CODES: tuple[Code, ...] = (
    Code(
        "INVENTORY_MISSING",
        "fatal",
        "There is no inventory of your machines yet",
        "ansible.cfg names inventory/cluster/, which is yours and not part of the project. It is copied once from the "
        "sample.",
        "cp -r inventory/sample inventory/cluster, then edit the addresses in inventory/cluster/hosts.yml",
    ),
    Code(
        "GROUP_EMPTY",
        "fatal",
        "The inventory has no host in the group spark",
        "Every play works on the group spark, whose child groups are the clusters.",
        "Put the machines below spark as inventory/sample/hosts.yml shows, and check with: ansible-inventory --graph",
    ),
    Code(
        "LIMIT_EMPTY",
        "fatal",
        "The limit leaves no machine of the group spark",
        "Ansible says nothing where a limit names only hosts that no play works on, and ends as if all were well.",
        "Leave -l out, or name after it a cluster, or hosts of: {choice}",
    ),
    Code(
        "CONTROLLER_UNSUPPORTED",
        "fatal",
        "The controller's Ansible or Python is too old",
        "The project is written for and tested with the versions in its locks.",
        "make venv && . .venv/bin/activate",
    ),
    Code(
        "VARIABLE_INVALID",
        "fatal",
        "A variable of the inventory cannot be used",
        "Variables are checked before any machine is touched.",
        "Correct {variable} in the inventory or on the command line, for example {example}",
    ),
    Code(
        "VARIABLE_UNKNOWN",
        "warn",
        "A variable looks misspelt",
        "The name is nearly one of ours and has no effect as it stands.",
        "Rename {given} to {meant}, or remove it.",
    ),
    Code(
        "VARIABLES_DIFFER",
        "fatal",
        "Members of one cluster disagree about a variable",
        "A cluster has one value for each variable; only rank belongs to a host.",
        "Set {variable} once, in the group of the cluster, and remove it from the hosts.",
    ),
    Code(
        "RANKS_INVALID",
        "fatal",
        "The ranks of a cluster are not 0, 1, 2 ...",
        "Every host has one rank and no rank is left out; without rank the order of the group counts.",
        "Remove rank from all hosts of {node}, or number them from 0 without gaps.",
    ),
    Code(
        "FACTS_MISSING",
        "fatal",
        "A member of the cluster was not looked at",
        "Nothing is changed on one node before everything that can be known has been checked on all of them.",
        "Make {node} reachable (ansible {node} -m ansible.builtin.ping) and run the play for the whole cluster.",
    ),
    Code(
        "CLUSTER_INCOMPLETE",
        "fatal",
        "A member of the cluster is not part of this run",
        "Half a pair cannot be set up, started or proven.",
        "Run the play for the whole cluster: leave -l away, or give the group, not the host.",
    ),
    Code(
        "MEMBER_STOPPED",
        "fatal",
        "A member of the cluster has stopped",
        "A node failed or went away, so its peers stop here rather than go on alone.",
        "Cure what {member} reported, then run the same command again.",
    ),
    Code(
        "PORT_UNSURE",
        "note",
        "The cabled port could not be told from its links",
        "Several ports look alike, so the first was chosen; whether the peers answer is proven after the change.",
        "If the peers do not answer, name the functions of the cabled port: fabric_netdevs: [{example}]",
    ),
    Code(
        "FABRIC_NOT_SET_UP",
        "fatal",
        "The rails have no addresses yet",
        "The ranks meet, and the weights travel, over addresses that site.yml sets and proves.",
        "Run site.yml for this cluster first.",
    ),
    Code(
        "TRANSPORT_TCP",
        "warn",
        "The ranks talk over TCP, not RDMA",
        "fabric_transport: tcp serves where no RDMA device exists. Rates measured like this say nothing about a "
        "Spark's fabric.",
        "On real Sparks: fabric_transport: rdma",
    ),
    Code(
        "RANGE_UNPLANNED",
        "warn",
        "The address range of the rails covers more than they are",
        "NCCL takes one range for all rails. The smallest that covers them also covers networks that are not rails, "
        "so a device with an address there could be chosen; the exact device list prevents it.",
        "Choose neighbouring subnets, for example fabric_subnets: [192.168.200.0/24, 192.168.201.0/24]",
    ),
    Code(
        "MODEL_UNNAMED",
        "fatal",
        "No model was named",
        "Neither the inventory nor the command line says what to serve.",
        "Add -e model=NAME; the catalogue has: {known}",
    ),
    Code(
        "MODEL_UNKNOWN",
        "fatal",
        "No recipe of that name",
        "A model is served from a recipe in models/ or in a folder of spark_models_path.",
        "Use -e model= with one of: {known}",
    ),
    Code(
        "RECIPE_INVALID",
        "fatal",
        "A recipe does not follow the schema",
        "A recipe is checked completely before anything is planned with it.",
        "{cure}",
    ),
    Code(
        "PROFILE_UNKNOWN",
        "fatal",
        "The recipe has no profile of that name",
        "A profile is a set of values that somebody tried together; the recipe names them.",
        "{cure}",
    ),
    Code(
        "PROFILE_VALUE_INVALID",
        "fatal",
        "A value of profile_values cannot be used",
        "The recipe names its variables and the values that each of them can have.",
        "{cure}",
    ),
    Code(
        "GUARD_REFUSES",
        "fatal",
        "These settings are recorded as harmful on this many nodes",
        "The recipe guards a combination that can be planned and would even start: somebody has seen what it does.",
        "{cure}",
    ),
    Code(
        "OVERLAY_MISSING",
        "fatal",
        "Files that the recipe mounts into the image are not there",
        "The recipe serves with files of the image replaced. They belong to their authors and are not part of the "
        "project; without them another engine would start.",
        "Put them beside the recipe, or below a folder of spark_models_path or models/, under these names.",
    ),
    Code(
        "OVERLAY_DIFFERS",
        "fatal",
        "An overlay file is not the one that the recipe means",
        "The recipe names the SHA-256 of the file that was tried.",
        "Get {file} again from its source, or write its hash into a recipe of your own.",
    ),
    Code(
        "MODEL_TOO_LARGE",
        "fatal",
        "The weights do not fit into the memory of the nodes",
        "The weights alone, before any cache, are more than the nodes have. Nothing that is set or tuned changes that.",
        "Use a smaller model or a smaller quantisation of it, or more nodes: {smallest}.",
    ),
    Code(
        "MEMORY_TOO_SMALL",
        "fatal",
        "A node's memory does not hold its share",
        "Each rank needs its share of the weights and what the engine keeps beside them; the sum is more than the "
        "node has.",
        "{cure}",
    ),
    Code(
        "DISK_TOO_SMALL",
        "fatal",
        "A node's disk does not hold what it needs",
        "Every node needs a full copy of the weights and the image: sharding happens after loading. Some space must "
        "stay free.",
        "On {node}: free {missing} on the file system of {path}, or set models_dir to a larger one.",
    ),
    Code(
        "WIDTH_UNPROVEN",
        "warn",
        "Nobody has recorded this model on this many nodes",
        "The recipe has no verdict for this width. Fitting in memory is necessary and not close to sufficient.",
        "None needed; the proof at the end of the play says whether it serves.",
    ),
    Code(
        "RANKS_FEWER_THAN_RECIPE",
        "warn",
        "The recipe splits the model over more ranks than there are nodes",
        "A Spark has one GPU, so every node is one rank. Each rank gets a larger share of the weights and of the cache "
        "than its author had.",
        "Put {ranks} nodes into the cluster, or look whether the memory of the plan is enough and write a recipe of "
        "your own for {nodes} (docs/models.md).",
    ),
    Code(
        "MODEL_FAILS_AT_WIDTH",
        "fatal",
        "This model is recorded as failing on this many nodes",
        "The recipe carries a recorded failure for this width.",
        "{cure}",
    ),
    Code(
        "WIDTH_UNEVEN",
        "fatal",
        "The model cannot be split over this many nodes",
        "Tensor parallelism gives every rank the same number of attention heads.",
        "Use a number of nodes that divides {heads}: {widths}.",
    ),
    Code(
        "RECIPE_UNSERVABLE",
        "fatal",
        "The recipe names no image to serve with",
        "The model is in the catalogue for its figures and its verdict; no source names a build that serves it.",
        "Copy {file} to a folder of your own, add image.reference, and name that folder in spark_models_path.",
    ),
    Code(
        "IMAGE_UNPINNED",
        "warn",
        "The image is not pinned by digest",
        "A tag can name other bytes tomorrow, and which build serves decides whether a model works.",
        "Put {reference}@sha256:... into image.reference; the digest: docker buildx imagetools inspect {reference}",
    ),
    Code(
        "ENGINE_SOURCE",
        "note",
        "The engine was not pulled from a registry",
        "The image was built or loaded on the machine, so its identity is what the nodes report and nothing more.",
        "None needed.",
    ),
    Code(
        "WEIGHTS_NOWHERE",
        "fatal",
        "No node has the weights",
        "One node must have a full copy; the others get theirs from it over the fabric.",
        "On {node}: {command}",
    ),
    Code(
        "WEIGHTS_SIZE_ODD",
        "warn",
        "The weights are much smaller than the recipe says",
        "A folder of links, or a download that was cut off, looks like a copy until the engine reads it.",
        "On {node}: look at {path} (`du -sL {path}`) and download what is missing.",
    ),
    Code(
        "CACHE_TOO_SMALL",
        "fatal",
        "The weights fit and their cache does not",
        "Beside the weights an engine keeps a cache for every token of the requests that it serves. It ends at once "
        "where not even one request of the longest context has room. A warning where only the estimate of what the "
        "engine keeps besides decides.",
        "{cure}",
    ),
    Code(
        "CACHE_SHARED",
        "note",
        "Not all requests fit into the cache at full length",
        "Shorter requests share the cache; when it is full, the youngest ones wait.",
        "None needed; to give all of them room: {ways}.",
    ),
    Code(
        "CACHE_UNKNOWN",
        "note",
        "Nothing says how large the cache has to be",
        "Neither a recorded run, nor the checkpoint's config.json, nor the recipe tells what a token takes, so that "
        "whether one request fits is first known at the start.",
        "Add measured or architecture.kv_bytes_per_token to the recipe; the engine prints its pool when it starts.",
    ),
    Code(
        "RECIPE_INSTEAD_OF_MODEL",
        "note",
        "The recipe file is served, and not the model of the inventory",
        "Both are set. The file is the more exact of the two, so it counts.",
        "None needed; leave recipe away to serve {model}.",
    ),
    Code(
        "RECIPE_UNMAPPABLE",
        "fatal",
        "A recipe of another launcher means something that cannot be planned here",
        "Its command is read as an argument list and never given to a shell. What would serve something else than the "
        "recipe means is refused rather than left out.",
        "{cure}",
    ),
    Code(
        "RECIPE_KEYS_UNMAPPED",
        "warn",
        "Parts of the recipe have no counterpart here",
        "The recipe of another launcher is read as it is; these parts of it are not used.",
        "Read the list. Where one of them matters, write a recipe of this project from {file} (docs/models.md).",
    ),
)
