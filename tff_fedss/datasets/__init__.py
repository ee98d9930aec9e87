"""Data of clients and data without clients, read from where users have them.

Each data set is a module or folder whose `load` returns a `FederatedDataset`; begin
with `tiny_imagenet`. `federated` has what they are made of, `central` the data without
clients. `images` makes an index of anybody's images; `sources` reads files from where
they lie, `formats` says whether one is a whole image.
"""
