"""Proposal distributions over classes."""

from tff_fedss.samplers.uniform import sample_without_replacement

__all__ = ["sample_without_replacement"]
