"""A paper that consists of this folder."""
