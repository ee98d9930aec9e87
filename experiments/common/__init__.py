"""The common parts of the programs of all papers."""
