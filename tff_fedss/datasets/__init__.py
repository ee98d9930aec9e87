"""Data of clients and data without clients, read from where users have them.

    federated/   what a federated data set is made of: `FederatedDataset`, client data,
                 TFRecord files and how they are written, partitions, preprocessing
    central/     data without clients, for the methods that have none

A source of federated data has a module here, or a folder if it takes several files;
its `load` returns a `FederatedDataset`: `synthetic` (its function is `glyphs`),
`omniglot`, `tiny_imagenet`, `landmarks`, `stanford_online_products`, `imagenet21k`.
What is beside them serves them all: `archives`, `image_files`, `fingerprint`,
`bijection`, and `tfds_download` for what comes from TFDS. `images` makes an index of
other people's images, from which both rooms have data.
"""
