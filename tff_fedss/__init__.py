"""Federated sampled softmax (FedSS) on TensorFlow Federated.

Begin with `algorithms.build_fedss`, the paper's Algorithm 1; `datasets` and `tasks`
give it clients, a model and a metric, `training` runs the rounds.
"""

__version__ = "0.1.0"
