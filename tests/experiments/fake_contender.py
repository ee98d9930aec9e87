"""A contender that behaves as its option `how` says; its training is one product."""

import os
import subprocess
import sys
import time

import numpy as np

from experiments.benchmarks import protocol


class Fake(protocol.Contender):
    settings = "fake"

    def __init__(self, workload, how="honest", diary=os.devnull, name=""):
        self._how, self._diary, self._name = how, diary, name
        self._weights = workload.initial_weights()
        self._num_rounds = 0

    def build(self):
        print("not a reply")  # As frameworks do.

    def one_round(self):
        self._num_rounds += 1
        with open(self._diary, "a") as file:
            file.write(self._name)
        if self._how != "stops" or self._num_rounds == 1:
            for value in self._weights.values():
                value *= 0.9
        if self._how == "dies" and self._num_rounds == 2:
            child = subprocess.Popen(["sleep", "600"])
            print("child", child.pid, flush=True)
            print("out of cheese", file=sys.stderr, flush=True)
            os._exit(3)
        if self._how == "raises":
            raise ValueError("no cheese")
        if self._how == "hangs" and self._num_rounds == 2:
            time.sleep(600)

    def weights(self):
        weights = dict(self._weights)
        if self._how == "lies":
            w = weights["classifier"].copy()
            w[3, 4] += 1
            weights["classifier"] = w
        if self._how == "nan":
            weights["conv1/bias"] = np.full_like(weights["conv1/bias"], np.nan)
        if self._how == "other model":
            del weights["conv1/bias"]
        return weights

    def loss(self):
        if self._how == "other loss at first":
            return 1.1 if self._num_rounds == 1 else 1.0
        return 1.1 if self._how == "other loss" else 1.0


if __name__ == "__main__":
    protocol.serve(Fake)
