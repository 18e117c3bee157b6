"""Builds and boots the virtual Sparks."""
