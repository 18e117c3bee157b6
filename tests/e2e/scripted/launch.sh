#!/bin/bash
# What an author's own script does: say something, set a variable, add an argument, and become the engine.
set -euo pipefail
echo "author's script: $WHERE of $SPARK_NODES, $# arguments, model $SPARK_MODEL, head at $SPARK_HEAD"
export LAUNCHED_AS="it's rank $SPARK_RANK"
exec "$SPARK_ENGINE" "$@" --seed 7
