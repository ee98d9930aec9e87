"""What federated data sets are made of. Begin with `dataset.FederatedDataset`.

`clients` is client data of arrays, `records` that of TFRecord files; `partitions` deals
examples out to clients; `preprocessing` brings stored images to the model's size;
`record_writer` and `split_csv` are for preparations.
"""
