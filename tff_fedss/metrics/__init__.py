"""What is measured of a model and of a round."""

from tff_fedss.metrics.accuracy import nearest_classes
from tff_fedss.metrics.communication import ClassifierTraffic, classifier_traffic

__all__ = ["ClassifierTraffic", "classifier_traffic", "nearest_classes"]
