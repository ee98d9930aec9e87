"""Glyphs that are drawn as they are asked for: no download, any number of classes."""

from tff_fedss.datasets.synthetic.dataset import glyphs

__all__ = ["glyphs"]
