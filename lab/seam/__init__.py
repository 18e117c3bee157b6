"""What no lab has, supplied on the node itself; driven by /etc/spark-lab/state.json."""
