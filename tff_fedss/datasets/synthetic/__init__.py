"""Glyphs that are drawn as they are asked for: no download, any number of classes.

Begin with `dataset.glyphs`; `glyph_drawing` draws an image from a class and a seed.
"""

from tff_fedss.datasets.synthetic.dataset import glyphs

__all__ = ["glyphs"]
