"""Federated image data sets: client data, positives P_k, test and public images."""
