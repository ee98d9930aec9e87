"""Partial FC at r = 1 in NumPy and float64: one device, the whole softmax at once.

The encoder is x = v A. What `PartialFC` spreads over devices and chunks stands here in
a few lines of textbook.
"""

import numpy as np

from tests.arrays import unit


def target_logits(cosines, kind, scale, size):
    """The logits of the targets and their derivatives by the cosines."""
    if kind == "none":
        return scale * cosines, np.full_like(cosines, scale)
    if kind == "cosface":
        return scale * (cosines - size), np.full_like(cosines, scale)
    theta = np.arccos(cosines)
    within = theta + size < np.pi
    value = np.where(within, np.cos(theta + size), cosines - size * np.sin(size))
    slope = np.where(within, np.sin(theta + size) / np.sin(theta), 1.0)
    return scale * value, scale * slope


class DenseTwin:
    def __init__(
        self, encoder, classifier, *, kind, scale, size, rate, momentum, decay=0.0
    ):
        self.weights = [np.float64(encoder), np.float64(classifier)]
        self.momentums = [np.zeros_like(w) for w in self.weights]
        self.margin = kind, scale, size
        self.rate, self.momentum, self.decay = rate, momentum, decay

    def gradients(self, inputs, labels):
        """The mean loss and its gradients by A and W."""
        a, w = self.weights
        rows = np.arange(len(labels))
        features = inputs @ a
        x, c = unit(features), unit(w)
        cosines = x @ c.T
        kind, scale, size = self.margin
        logits = scale * cosines
        targets, slopes = target_logits(cosines[rows, labels], kind, scale, size)
        logits[rows, labels] = targets
        log_z = np.log(np.exp(logits).sum(1))
        loss = np.mean(log_z - targets)
        by_logit = np.exp(logits - log_z[:, np.newaxis])
        by_logit[rows, labels] -= 1
        by_cosine = by_logit / len(labels) * scale
        by_cosine[rows, labels] *= slopes / scale
        by_x, by_c = by_cosine @ c, by_cosine.T @ x
        by_features = _through_unit(by_x, features)
        return loss, [inputs.T @ by_features, _through_unit(by_c, w)]

    def update(self, inputs, labels):
        loss, gradients = self.gradients(inputs, labels)
        for weight, momentum, gradient in zip(self.weights, self.momentums, gradients):
            momentum[:] = self.momentum * momentum + gradient + self.decay * weight
            weight -= self.rate * momentum
        return loss


def _through_unit(gradient, vectors):
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    direction = vectors / lengths
    along = (direction * gradient).sum(1, keepdims=True)
    return (gradient - along * direction) / lengths
