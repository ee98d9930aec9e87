"""Data of clients and data without clients, read from where users have them.

A data set is a module or folder whose `load` returns a `FederatedDataset`; begin with
`tiny_imagenet`. `federated` has what they are made of, `central` data without clients,
`images` an index of anybody's images. Whatever cannot be used (an argument, a file, a
line of it) is an `InvalidInputError`, which docstrings do not repeat.
"""
