"""The VM pair: two emulated or KVM machines with soft-RoCE devices on the CX7 functions."""
