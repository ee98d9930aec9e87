"""Federated sampled softmax (FedSS) on TensorFlow Federated."""

__version__ = "0.1.0"
