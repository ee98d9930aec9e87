"""Starts a feature extractor from weights that somebody else trained (FedSS, A.2)."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping

import h5py
import numpy as np
import tensorflow as tf

from tff_fedss.errors import InvalidInputError

# Weights by layer and then by their own short name: {"Conv": {"kernel": array}}.
_Weights = Mapping[str, Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What `load_pretrained` did.

    Attributes:
        path: Of the file.
        loaded: The layers whose weights now are those of the file.
        not_loaded: The other layers with weights and, for each, the reason. They keep
            the weights that they had.
        unused: The layers of the file that the model has not, such as the classifier.
        num_loaded: The number of parameters (scalars) loaded.
        num_parameters: The number of parameters of the model.
    """

    path: str
    loaded: tuple[str, ...]
    not_loaded: Mapping[str, str]
    unused: tuple[str, ...]
    num_loaded: int
    num_parameters: int

    def __str__(self) -> str:
        """One paragraph for people."""
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


def load_pretrained(model: tf.keras.Model, path: str) -> LoadReport:
    """Copies weights from a Keras file into the layers of the same names.

    A layer is loaded if the file has all of its weights in the same shapes, and keeps
    what it had otherwise: a layer is never half loaded.

    From a network with BatchNorms into `mobilenet_v3`, the kernels, biases and the
    gamma and beta of each BatchNorm are loaded; the moving means and variances have no
    counterpart. Gamma and beta mean the same in GroupNorm, the scale and the offset of
    a normalised channel, and the kernels after it were trained on these: with gamma at
    1, channels that training has switched off would come back at full strength. What
    they are applied to is not quite the same (a channel's own statistics there, those
    of its group here), so expect lower accuracy than the file's until phi is trained.

    Args:
        model: The model, built eagerly. Its weights are changed in place.
        path: A Keras HDF5 file (`model.save_weights("x.h5")` or `model.save("x.h5")`),
            whose weights are read and nothing else, or a SavedModel folder or `.keras`
            file, which Keras loads as a model: take these from people you trust.

    Returns:
        What was loaded and what was not. Read it: a file for another alpha or size fits
        a few layers only.

    Raises:
        InvalidInputError: If the file is missing, cannot be read or fits no layer. The
            model is then as it was.
        ValueError: If called inside a graph, where the weights could not be changed.
    """
    if not tf.executing_eagerly():
        raise ValueError("load_pretrained must be called eagerly, not inside a graph.")
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
    num_loaded = 0
    for pairs in found.values():
        for variable, value in pairs:
            variable.assign(value)
            num_loaded += value.size
    return LoadReport(
        path=str(path),
        loaded=tuple(found),
        not_loaded=not_loaded,
        unused=tuple(k for k in weights if k not in found and k not in not_loaded),
        num_loaded=num_loaded,
        num_parameters=model.count_params(),
    )


def _read(path: str) -> _Weights:
    """Reads the weights of the layers that have any."""
    if not pathlib.Path(path).exists():
        raise InvalidInputError(
            f"{path} does not exist: expected a Keras weights file."
        )
    try:
        # h5py's own test; a folder (SavedModel) or a zip file (.keras) is none.
        weights = _read_hdf5(path) if h5py.is_hdf5(path) else _read_model(path)
    # What Keras and h5py raise for damaged files is neither documented nor a family.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInputError(
            f"{path} cannot be read as Keras weights (HDF5, SavedModel or .keras): "
            f"{reason}"
        ) from error
    return {name: values for name, values in weights.items() if values}


def _read_hdf5(path: str) -> _Weights:
    with h5py.File(path, "r") as file:
        # `model.save` puts the weights into a group, beside the architecture.
        root = file.get("model_weights", file)
        return {
            layer: {
                _short_name(name): root[layer][name][()]
                for name in _names(root[layer], "weight_names")
            }
            for layer in _names(root, "layer_names")
        }


def _names(group: h5py.Group, attribute: str) -> list[str]:
    """Reads a list of names, which Keras splits (x0, x1, ...) if it is long."""
    parts = [group.attrs[attribute]] if attribute in group.attrs else []
    while f"{attribute}{len(parts)}" in group.attrs:
        parts.append(group.attrs[f"{attribute}{len(parts)}"])
    if not parts:
        raise ValueError(f"its group {group.name} has no attribute {attribute}")
    names = [name for part in parts for name in part]
    return [n.decode() if isinstance(n, bytes) else str(n) for n in names]


def _read_model(path: str) -> _Weights:
    model = tf.keras.models.load_model(path, compile=False)
    weights = collections.defaultdict(dict)
    for layer in model.layers:
        for variable in layer.weights:
            weights[layer.name][_short_name(variable.name)] = variable.numpy()
    return weights


def _short_name(weight_name: str) -> str:
    """Strips the scope and the output: "Conv/BatchNorm/gamma:0" -> "gamma"."""
    return weight_name.rpartition("/")[2].partition(":")[0]


def _examples(names: Mapping[str, object]) -> str:
    return ", ".join(list(names)[:3]) or "none"
