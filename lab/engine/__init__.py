"""The serving image of the lab: real vLLM on CPU."""

VERSION = "0.32.0"
IMAGE = f"spark-lab/vllm-cpu:{VERSION}"
