"""Actors that do not start, in a module without TensorFlow, which takes its time."""

import time


class Broken:
    """An actor that does not start."""

    def __init__(self, *_):
        raise RuntimeError("Something went wrong:\nthere is no such thing")

    def start(self, shared):
        """What the pool asks for."""


class Endless(Broken):
    """An actor that never ends to start."""

    def __init__(self, *_):
        time.sleep(1e6)
