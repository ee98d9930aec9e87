"""Tasks: the data, the model and the metric of one experiment family."""

from tff_fedss.tasks.classification import Classification

__all__ = ["Classification"]
