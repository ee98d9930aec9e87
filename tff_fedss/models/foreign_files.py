"""Model files of others, checked for what Keras and h5py would run, unpack or open.

`safe_mode` of Keras 2.15 refuses the Python code of a Lambda. It runs any function of
TensorFlow that a layer names, also one that writes files, imports any module that a
description names, and unpacks a file whatever its size. So descriptions are read first.
"""

import json
import os
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tff_fedss import unpacking

_DESCRIPTION = "config.json"
_WEIGHTS = "model.weights.h5"
_LONGEST_TEXT = 1 << 26
# Where the classes of a description come from.
_MODULES = re.compile(
    r"(keras|tff_fedss)(\..*)?|builtins|tensorflow\.python\.ops\.init_ops_v2"
)
# Layers that run what their name does not say.
_ANY_CODE = re.compile(r"Lambda|__lambda__|(Class|Instance)Method|InstanceProperty")
# Functions of TensorFlow that compute and do nothing else.
_FUNCTIONS = re.compile(
    r"(compat\.v1\.)?("
    r"(math|nn|linalg|image|__operators__)\.\w+|debugging\.check_numerics|"
    r"dtypes\.saturate_cast|"
    r"broadcast_to|cast|clip_by_value|concat|expand_dims|fill|floor_div|gather|"
    r"identity|one_hot|ones_like|pad|range|repeat|reshape|reverse|shape|slice|split|"
    r"squeeze|stack|strided_slice|tensordot|tile|transpose|unstack|where|zeros_like)"
)

# What Keras saves beside a model's own variables.
_NOT_OF_THE_MODEL = ("optimizer/", "keras_api/")


class ForeignCodeError(ValueError):
    """A model file would run code, or read other files."""


def load_keras(path: str | os.PathLike) -> tf.keras.Model:
    """Loads a .keras file that runs nothing but layers and arithmetic.

    Raises:
        Exception: If it is damaged, too large or would do more; what Keras raises is
            not documented.
    """
    with unpacking.Zip(path) as archive:
        unpacking.check_zip(archive, path)
        for described in _objects(json.loads(read_text(archive, _DESCRIPTION))):
            _check_object(described)
        if _WEIGHTS in archive.namelist():
            with archive.open(_WEIGHTS) as packed, h5py.File(packed, "r") as file:
                _check_weights(file, os.path.getsize(path))
    return tf.keras.models.load_model(path, compile=False, safe_mode=True)


def read_text(archive: zipfile.ZipFile, name: str) -> str:
    """Returns a text in a zip."""
    if archive.getinfo(name).file_size > _LONGEST_TEXT:
        raise unpacking.UnpackingError(f"{name} is longer than {_LONGEST_TEXT:,} bytes")
    return archive.read(name).decode()


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """Yields the descriptions of objects in a description, itself included."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "class_name" in value or "module" in value:
                yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _check_object(described: dict[str, Any]) -> None:
    name, module = described.get("class_name"), described.get("module")
    config = described.get("config")
    if module is not None and not _MODULES.fullmatch(str(module)):
        raise ForeignCodeError(f"it names the module {module!r}")
    if _ANY_CODE.fullmatch(str(name)):
        raise ForeignCodeError(f"it has a {name}, which runs Python code")
    if name == "function" and module not in (None, "builtins"):
        raise ForeignCodeError(f"it names the function {config!r} of {module!r}")
    if str(name).endswith("OpLambda"):
        function = config.get("function") if isinstance(config, dict) else config
        if not _FUNCTIONS.fullmatch(str(function)):
            raise ForeignCodeError(f"it calls the function {function!r} of TensorFlow")


def _check_weights(file: h5py.File, packed: int) -> None:
    """Checks all that is in an HDF5 file, before any of it is read."""
    unpacked, groups, seen = 0, [file["/"]], set()
    while groups:
        group = groups.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:
            continue
        seen.add(address)
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ForeignCodeError(f"{name} is a link; expected weights")
            item = group[name]
            if isinstance(item, h5py.Group):
                groups.append(item)
            else:
                unpacked += _num_bytes(item)
                unpacking.check_ratio(unpacked, packed)


def _num_bytes(weights: h5py.Dataset) -> int:
    """Returns the size of weights, which must not lie in another file."""
    if weights.external or weights.is_virtual:
        raise ForeignCodeError(f"{weights.name} lies in another file")
    return weights.nbytes


def check_hdf5(path: str | os.PathLike) -> None:
    """Raises a ValueError if weights are too large, or lie in other files."""
    with h5py.File(path, "r") as file:
        _check_weights(file, os.path.getsize(path))


def saved_variables(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the variables of a SavedModel's model by their names.

    `tf.saved_model.load` would run the graphs by which it initializes its resources.
    """
    reader = tf.train.load_checkpoint(os.path.join(path, "variables", "variables"))
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
    )
    return {
        variable.full_name: reader.get_tensor(variable.checkpoint_key)
        for node in graph.nodes
        for variable in node.attributes
        if variable.name == "VARIABLE_VALUE"
        and not variable.checkpoint_key.startswith(_NOT_OF_THE_MODEL)
    }
