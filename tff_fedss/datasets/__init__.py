"""Data of clients and data without clients, read where users keep them.

A data set is a module or folder whose `load` returns a `FederatedDataset`; begin with
`tiny_imagenet`. `federated` has their building blocks, `central` data without clients,
`images` an index of a user's images. All functions raise `InvalidInputError` for an
unusable argument, file or line, so docstrings do not repeat it.
"""
