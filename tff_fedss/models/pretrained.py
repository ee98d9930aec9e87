"""Pretrained weights for a feature extractor, from files (FedSS, A.2)."""

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping

import h5py
import numpy as np
import tensorflow as tf

# Not public, but not written here a second time: origin and MD5 of its weights.
from keras.src.applications import mobilenet_v3

from tff_fedss import files, unpacking
from tff_fedss.errors import InvalidInputError
from tff_fedss.models import foreign_files
from tff_fedss.models.layers import without_counts

# Weights by layer and then by their short name: {"Conv": {"kernel": array}}.
_Weights = Mapping[str, Mapping[str, np.ndarray]]
# Keras's weights of MobileNetV3 with ImageNet's top: its name, by the network's.
_IMAGENET = {
    "mobilenet_v3_small": "small_224_1.0_float",
    "mobilenet_v3_large": "large_224_1.0_float",
}
# A message names at most this many of the layers that do not fit.
_MAX_NAMED = 3
# MoCo's two dense layers after the encoder, each with a kernel and a bias.
_NUM_HEAD_ARRAYS = 4


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The report of `load_pretrained`.

    Attributes:
        loaded: The layers that have the file's weights.
        not_loaded: Why each of the other layers kept its weights.
        unused: The layers of the file that the model lacks, such as the classifier.
    """

    path: str
    loaded: tuple[str, ...]
    not_loaded: Mapping[str, str]
    unused: tuple[str, ...]
    num_loaded: int
    num_parameters: int

    def __str__(self) -> str:
        """Returns the report as one paragraph."""
        num_layers = len(self.loaded) + len(self.not_loaded)
        sentences = [
            f"{self.path}: loaded {len(self.loaded)} of {num_layers} layers, "
            f"{self.num_loaded:,} of {self.num_parameters:,} parameters."
        ]
        if self.not_loaded:
            layers = "; ".join(f"{k} ({v})" for k, v in self.not_loaded.items())
            sentences.append(f"Left at their initial weights: {layers}.")
        if self.unused:
            sentences.append(f"In the file but not used: {', '.join(self.unused)}.")
        return " ".join(sentences)


def imagenet_file(network: str) -> pathlib.Path | None:
    """Returns Keras's file of ImageNet weights of one of `FEATURE_EXTRACTORS`.

    It is in Keras's cache, existing or not; None if there are no such weights.
    """
    if network not in _IMAGENET:
        return None
    name = f"weights_mobilenet_v3_{_IMAGENET[network]}.h5"
    return pathlib.Path.home() / ".keras" / "models" / name


def fetch_imagenet(network: str) -> pathlib.Path:
    """Returns the file of `imagenet_file`, downloaded if it is missing.

    Raises:
        InvalidInputError: If the network has no such weights, or the download fails.
    """
    path = imagenet_file(network)
    if path is None:
        raise InvalidInputError(
            f"imagenet: Keras has no ImageNet weights of {network}; it has those of "
            f"{', '.join(_IMAGENET)}."
        )
    origin = mobilenet_v3.BASE_WEIGHT_PATH + path.name
    digest, _ = mobilenet_v3.WEIGHTS_HASHES[_IMAGENET[network]]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            # Elsewhere, if Keras cannot write there.
            found = tf.keras.utils.get_file(
                path.name,
                origin,
                file_hash=digest,
                hash_algorithm="md5",
                cache_subdir="models",
                cache_dir=str(path.parents[1]),
            )
    # Keras's errors without a network are not documented.
    except Exception as error:
        raise InvalidInputError(
            f"imagenet: {path.name} cannot be downloaded. Put the file from {origin} "
            f"(MD5 {digest}) to {path}."
        ) from error
    return pathlib.Path(found)


def load_pretrained(
    model: tf.keras.Model, path: str | os.PathLike, *, min_share: float = 0.9
) -> LoadReport:
    """Copies weights from a file into a model.

    A Keras file fills the layers of the same names: a layer is loaded if the file has
    all of its weights in the same shapes, and is unchanged otherwise. An .npz file of
    this project fills all weights by the order of its arrays: phi_000, phi_001, ... of
    a run's result, or the query encoder of moco.npz without its head.

    `mobilenet_v3` uses a BatchNorm's gamma and beta for its GroupNorm: the scale and
    the offset of a normalised channel, on which the following kernels were trained. The
    statistics are a group's and not a channel's, so expect lower accuracy than the
    file's until phi is trained.

    Args:
        model: The model, built eagerly. Its weights are changed in place.
        path: A Keras HDF5 file (`model.save_weights("x.h5")` or `model.save("x.h5")`),
            a SavedModel folder, of which only weights are read; or a `.keras` file,
            which Keras loads as a model in its safe mode. Files of `save_encoder` are
            accepted, except TFLite. Or an .npz file, as above.
        min_share: The smallest share of the model's parameters that a Keras file must
            load, in [0, 1]. With a new embedding layer (d = 64) it is 0.96 to 0.98 of a
            MobileNetV3; an ImageNet file without its top also lacks Conv_2, so 0.59 to
            0.69; a file for another alpha or size gives hardly any.

    Raises:
        InvalidInputError: If the file is missing, cannot be read, fits less than
            `min_share` of the model, or has values that are not finite. The model is
            then unchanged.
        ValueError: If called inside a graph, which would not change weights.
    """
    if not tf.executing_eagerly():
        raise ValueError("load_pretrained must be called eagerly, not inside a graph.")
    if pathlib.Path(path).suffix == ".npz":
        return _load_arrays(model, path)
    weights = _read(path)
    found, not_loaded = {}, {}
    for layer in model.layers:
        if not layer.weights:
            continue
        source = weights.get(layer.name)
        targets = {_short_name(v.name): v for v in layer.weights}
        if source is None:
            not_loaded[layer.name] = "not in the file"
        elif missing := sorted(targets.keys() - source.keys()):
            not_loaded[layer.name] = f"the file lacks its {', '.join(missing)}"
        elif wrong := [k for k, v in targets.items() if v.shape != source[k].shape]:
            not_loaded[layer.name] = ", ".join(
                f"{k} is {list(source[k].shape)} in the file, "
                f"{targets[k].shape.as_list()} in the model"
                for k in wrong
            )
        else:
            found[layer.name] = [(v, source[k]) for k, v in targets.items()]
    if not found:
        raise InvalidInputError(
            f"{path} fits no layer of {model.name}: expected layers such as "
            f"{_examples(not_loaded)}, found {_examples(weights)}."
        )
    report = LoadReport(
        path=str(path),
        loaded=tuple(found),
        not_loaded=not_loaded,
        unused=tuple(k for k in weights if k not in found and k not in not_loaded),
        num_loaded=sum(v.size for pairs in found.values() for _, v in pairs),
        num_parameters=model.count_params(),
    )
    share = report.num_loaded / report.num_parameters
    if share < min_share:
        raise InvalidInputError(
            f"{path} has {report.num_loaded:,} of the {report.num_parameters:,} "
            f"parameters of {model.name}, {share:.1%}, less than the {min_share:.0%} "
            f"that a start needs: {_first_misfits(not_loaded)}."
        )
    _assign(path, found)
    return report


def pretrained_digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file of weights, or of a folder's names and files.

    Raises:
        InvalidInputError: If there is neither a file nor a folder.
        OSError: If it cannot be read.
    """
    if not os.path.exists(path):
        raise InvalidInputError(f"{path} does not exist: expected a file of weights.")
    return files.tree_sha256(path)


def _assign(
    path: str | os.PathLike,
    found: Mapping[str, list[tuple[tf.Variable, np.ndarray]]],
) -> None:
    """Assigns values to variables, by their layer or array."""
    for name, pairs in found.items():
        if not all(np.isfinite(value).all() for _, value in pairs):
            raise InvalidInputError(f"{path}: {name} has values that are not finite.")
    for pairs in found.values():
        for variable, value in pairs:
            variable.assign(value)


def _load_arrays(model: tf.keras.Model, path: str | os.PathLike) -> LoadReport:
    """Loads phi from an .npz file of this project, or nothing."""
    try:
        found = unpacking.npz_arrays(path)
        arrays = {name: np.float32(array) for name, array in found.items()}
    # What NumPy raises for damaged files is not documented.
    except Exception as error:
        raise _unreadable(path, "an .npz file of arrays", error) from error
    kind, variables, unused = "phi", model.trainable_variables, ("W",)
    count = _num_arrays(arrays, "phi")
    if not count:  # MoCo's encoder has all variables.
        kind, variables = "query", model.variables
        unused = ("projection head", "key encoder", "queue")
        count = _num_arrays(arrays, "query") - _NUM_HEAD_ARRAYS
    elif others := without_counts(model, model.non_trainable_variables):
        raise InvalidInputError(
            f"{path} holds no weights such as {others[0].name}, which {model.name} has "
            "beside its trainable ones."
        )
    found = {}
    for i in range(max(count, len(variables))):
        name = f"{kind}_{i:03d}"
        theirs = list(arrays[name].shape) if i < count else "missing"
        ours = variables[i].shape.as_list() if i < len(variables) else "missing"
        if theirs != ours:
            raise InvalidInputError(
                f"{path} does not fit {model.name}: {name} is {theirs} in the file and "
                f"{ours} in the model (of {len(variables)} arrays)."
            )
        found[name] = [(variables[i], arrays[name])]
    _assign(path, found)
    return LoadReport(
        path=str(path),
        loaded=tuple(layer.name for layer in model.layers if layer.weights),
        not_loaded={},
        unused=unused,
        num_loaded=model.count_params(),
        num_parameters=model.count_params(),
    )


def _num_arrays(arrays: Mapping[str, np.ndarray], kind: str) -> int:
    """Counts phi_000, phi_001, ... up to the first that is missing."""
    return next(i for i in itertools.count() if f"{kind}_{i:03d}" not in arrays)


def _read(path: str | os.PathLike) -> _Weights:
    """Reads the weights of the layers that have some."""
    try:
        # A folder (SavedModel) or a zip file (.keras), not an HDF5 file.
        weights = _read_hdf5(path) if h5py.is_hdf5(path) else _read_model(path)
    # The errors of Keras and h5py for damaged files are not documented.
    except Exception as error:
        what = "Keras weights (HDF5, SavedModel or .keras)"
        raise _unreadable(path, what, error) from error
    return {name: values for name, values in weights.items() if values}


def _unreadable(
    path: str | os.PathLike, what: str, error: Exception
) -> InvalidInputError:
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return InvalidInputError(f"{path} cannot be read as {what}: {first_line}")


def _read_hdf5(path: str | os.PathLike) -> _Weights:
    foreign_files.check_hdf5(path)
    # Keras's `load_weights(by_name=True, skip_mismatch=True)` would skip BatchNorms,
    # since they have four weights, and GroupNorms two.
    with h5py.File(path, "r") as file:
        # `model.save` writes the weights in a group, beside the architecture.
        root = file.get("model_weights", file)
        return {
            layer: {
                _short_name(name): np.float32(root[layer][name][()])
                for name in _names(root[layer], "weight_names")
            }
            for layer in _names(root, "layer_names")
        }


def _names(group: h5py.Group, attribute: str) -> list[str]:
    names = group.attrs[attribute]
    return [n.decode() if isinstance(n, bytes) else str(n) for n in names]


def _read_model(path: str | os.PathLike) -> _Weights:
    """Reads a SavedModel or a .keras file without running its Python code."""
    weights = collections.defaultdict(dict)
    if os.path.isdir(path):
        for name, value in foreign_files.saved_variables(path).items():
            weights[name.rpartition("/")[0]][_short_name(name)] = value
        return weights
    model = foreign_files.load_keras(path)
    for layer in _flat_layers(model):
        for variable in layer.weights:
            weights[layer.name][_short_name(variable.name)] = variable.numpy()
    return weights


def _flat_layers(model: tf.keras.Model) -> Iterator[tf.keras.layers.Layer]:
    """Yields the layers of a model and of nested models, such as phi in an encoder."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _flat_layers(layer)
        else:
            yield layer


def _short_name(weight_name: str) -> str:
    """Strips the scope and the output: "Conv/BatchNorm/gamma:0" -> "gamma"."""
    return weight_name.rpartition("/")[2].partition(":")[0]


def _first_misfits(not_loaded: Mapping[str, str]) -> str:
    """Describes why the first layers do not fit."""
    misfits = [f"{name} ({why})" for name, why in not_loaded.items()]
    if (more := len(misfits) - _MAX_NAMED) > 0:
        misfits[_MAX_NAMED:] = [f"and {more} more"]
    return "; ".join(misfits)


def _examples(names: Mapping[str, object]) -> str:
    return ", ".join(list(names)[:3]) or "none"
