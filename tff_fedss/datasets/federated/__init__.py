"""What federated data sets are made of: client data, partitions, records."""
