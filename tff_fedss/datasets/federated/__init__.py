"""Building blocks of federated data sets. Begin with `dataset.FederatedDataset`.

`clients` is client data of arrays, `records` that of TFRecord files; `partitions`
assigns examples to clients; `preprocessing` brings stored images to the model's size;
`record_writer` and `split_csv` are for preparations.
"""
