"""A trained feature extractor as a file of its own: images in, unit vectors out.

The file has everything in it: how images become ready for phi, phi, and the division by
the length. It is made of Keras's own layers, so that it loads where this project is not
installed, and it knows where it comes from (`tff_fedss.json` within it):

    encoder = tf.keras.models.load_model("encoder.keras")
    vectors = encoder(images)  # uint8[N, height, width, 3] to float32[N, d]
"""

import functools
import json
import os
import pathlib
import shutil
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.models.cosine_classifier import unit
from tff_fedss.models.image_input import ImageInput

FORMATS = ("keras", "saved_model", "tflite")
FORMAT_NAME = "tff_fedss encoder"
_VERSION = 1
_METADATA = "tff_fedss.json"
# Where TensorFlow keeps a SavedModel's files that are not its own.
_EXTRA_FOLDER = "assets.extra"
_MAX_BATCH = 32
_MAX_BATCH_PIXELS = 1 << 23


def with_input_and_length(
    phi: tf.keras.Model, image_input: ImageInput, *, of_keras_layers: bool = True
) -> tf.keras.Model:
    """Puts before phi how images become ready for it, and its features' length after.

    Args:
        phi: From float32[examples, image_size, image_size, channels], with values in
            0..255, to float32[examples, d], with the weights that are wanted.
        image_input: How images become ready.
        of_keras_layers: Whether this project's layers become Keras's own, which give
            the same but for rounding, so that the model loads without this project.

    Returns:
        A model from uint8[N, height, width, 3], of any height and width, to float32[
        N, d] of length 1. Phi, or its copy, is one of its layers, under its name.

    Raises:
        ValueError: If phi takes other images than image_input makes.
    """
    size, channels = image_input.image_size, image_input.channels
    if phi.input_shape[1:] != (size, size, channels):
        raise ValueError(
            f"{phi.name} takes {phi.input_shape[1:]}, found an input for "
            f"{(size, size, channels)}."
        )
    images = tf.keras.Input([None, None, 3], dtype=tf.uint8, name="images")
    features = (_copy(phi) if of_keras_layers else phi)(image_input(images))
    vectors = tf.keras.layers.Activation("linear", name="vectors")(unit(features))
    return tf.keras.Model(images, vectors, name="encoder")


def _copy(phi: tf.keras.Model) -> tf.keras.Model:
    """A copy of phi of Keras's own layers: the same function and weights."""

    def copy(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
        if hasattr(layer, "as_keras"):
            return layer.as_keras()
        return type(layer).from_config(layer.get_config())

    result = tf.keras.models.clone_model(phi, clone_function=copy)
    result.set_weights(phi.get_weights())
    return result


def save_encoder(
    phi: tf.keras.Model,
    image_input: ImageInput,
    path: str | os.PathLike,
    kind: str,
    facts: Mapping[str, Any],
) -> None:
    """Writes an encoder, whole or not at all.

    A TFLite file takes images of another size after `resize_tensor_input`, and needs
    TensorFlow's operations beside TFLite's (the Flex delegate, which is a part of the
    interpreter in the `tensorflow` package): antialiasing is none of TFLite's.

    Args:
        phi: As for `with_input_and_length`.
        image_input: Likewise.
        path: A file, or the folder of a SavedModel. An encoder that is there already is
            replaced; another folder is not.
        kind: One of `FORMATS`.
        facts: What else to write into its metadata, for JSON.

    Raises:
        InvalidInputError: If there can be no such file.
        RunStoppedError: If it cannot be written.
    """
    path = pathlib.Path(path)
    check_output(path, kind)
    # Of Keras's GroupNorm, TFLite makes sums in five dimensions that it cannot do.
    model = with_input_and_length(phi, image_input, of_keras_layers=kind != "tflite")
    metadata = {
        "format": FORMAT_NAME,
        "version": _VERSION,
        "embedding_dim": model.output_shape[-1],
        "image_input": image_input.as_json(),
        **facts,
    }
    text = json.dumps(metadata, indent=2) + "\n"
    if kind == "saved_model":
        _save_folder(model, path, text)
        return
    with files.replacing(path) as temporary:
        if kind == "tflite":
            temporary.write_bytes(_as_tflite(model))
        else:
            # Keras goes by the suffix.
            named = temporary.with_name(f"{temporary.name}.keras")
            try:
                model.save(named)
                os.replace(named, temporary)
            finally:
                named.unlink(missing_ok=True)
        # A .keras file is a zip; to a TFLite file one is appended, as TFLite's own
        # metadata are.
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.writestr(zipfile.ZipInfo(_METADATA), text)


def check_output(path: str | os.PathLike, kind: str) -> None:
    """Checks that an encoder may be written to a place, before anything is done.

    Raises:
        InvalidInputError: If it may not.
    """
    path = pathlib.Path(path)
    if kind == "keras" and path.suffix != ".keras":
        raise InvalidInputError(
            f"{path} must end in .keras: Keras knows its files by that."
        )
    if not path.parent.is_dir():
        raise InvalidInputError(f"{path} cannot be written: no folder {path.parent}.")
    if kind != "saved_model":
        if path.is_dir():
            raise InvalidInputError(f"{path} is a folder; expected a file's name.")
    elif path.is_file() or (
        path.is_dir()
        and any(path.iterdir())
        and not (path / _EXTRA_FOLDER / _METADATA).is_file()
    ):
        raise InvalidInputError(
            f"{path} is there already and is no encoder: name a new folder."
        )


def _save_folder(model: tf.keras.Model, path: pathlib.Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with files.writing(path):
        try:
            model.save(temporary, include_optimizer=False, save_format="tf")
            (temporary / _EXTRA_FOLDER).mkdir(exist_ok=True)
            (temporary / _EXTRA_FOLDER / _METADATA).write_text(text, "utf-8")
            if path.exists():
                shutil.rmtree(path)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _as_tflite(model: tf.keras.Model) -> bytes:
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    # Antialiasing, which the delegate can do but has not on its list.
    converter.target_spec.experimental_select_user_tf_ops = ["ScaleAndTranslate"]
    return converter.convert()


class ExportedEncoder:
    """An encoder that `save_encoder` wrote, in any of its formats.

    Attributes:
        path: Where it is.
        metadata: What it says of itself.
        embedding_dim: d.
    """

    def __init__(self, path: str | os.PathLike):
        """Loads it.

        Args:
            path: The file or folder.

        Raises:
            InvalidInputError: If there is none, or it is no such encoder, or damaged.
        """
        self.path = pathlib.Path(path)
        self.metadata = read_metadata(path)
        self.embedding_dim = int(self.metadata["embedding_dim"])
        try:
            self._apply = self._load()
            vector = self._apply(np.zeros([1, 9, 10, 3], np.uint8))
        # What TensorFlow raises for damaged files is neither documented nor a family.
        except Exception as error:
            raise InvalidInputError(
                f"{path} cannot be loaded as an encoder: {_first_line(error)}."
            ) from error
        if vector.shape != (1, self.embedding_dim):
            raise InvalidInputError(
                f"{path} gives vectors of shape {vector.shape}, and says that they "
                f"have {self.embedding_dim} numbers."
            )

    @functools.cached_property
    def digest(self) -> str:
        """By which it is known again, see `files.tree_sha256`."""
        return files.tree_sha256(self.path)

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Embeds images.

        Those of one size go through together, as far as memory allows. The same images
        in the same order give the same bytes; in another company, a vector may differ
        in its last bits.

        Args:
            images: uint8[height, width, 3] each, of any sizes.

        Returns:
            float32[len(images), d], of length 1.
        """
        vectors = np.empty([len(images), self.embedding_dim], np.float32)
        of_size: dict[tuple[int, ...], list[int]] = {}
        for number, image in enumerate(images):
            of_size.setdefault(image.shape, []).append(number)
        for (height, width, _), numbers in of_size.items():
            fit = max(1, _MAX_BATCH_PIXELS // (height * width))
            size = min(fit, _MAX_BATCH)
            for start in range(0, len(numbers), size):
                batch = numbers[start : start + size]
                vectors[batch] = self._apply(np.stack([images[k] for k in batch]))
        return vectors

    def _load(self) -> Callable[[np.ndarray], np.ndarray]:
        if self.path.is_dir():
            loaded = tf.saved_model.load(self.path)
            return functools.partial(_apply_signature, loaded)
        if is_tflite(self.path):
            return _Interpreter(self.path)
        model = tf.keras.models.load_model(self.path, compile=False)
        spec = tf.TensorSpec([None, None, None, 3], tf.uint8)
        graph = tf.function(
            lambda images: model(images, training=False), input_signature=[spec]
        )
        return lambda images: graph(images).numpy()


def _apply_signature(loaded: Any, images: np.ndarray) -> np.ndarray:
    (vectors,) = loaded.signatures["serving_default"](tf.constant(images)).values()
    return vectors.numpy()


class _Interpreter:
    """A TFLite model, which has to be told when the images have another size."""

    def __init__(self, path: pathlib.Path):
        self._content = path.read_bytes()
        self._begin()

    def _begin(self) -> None:
        self._interpreter = tf.lite.Interpreter(
            model_content=self._content, num_threads=os.cpu_count()
        )
        (self._input,) = self._interpreter.get_input_details()
        (self._output,) = self._interpreter.get_output_details()
        self._shape: tuple[int, ...] | None = None

    def __call__(self, images: np.ndarray) -> np.ndarray:
        # TFLite's delegate for the CPU may refuse more images than it had before.
        if self._shape is not None and len(images) != self._shape[0]:
            self._begin()
        interpreter, place = self._interpreter, self._input["index"]
        if images.shape != self._shape:
            interpreter.resize_tensor_input(place, images.shape)
            interpreter.allocate_tensors()
            self._shape = images.shape
        interpreter.set_tensor(place, images)
        interpreter.invoke()
        return interpreter.get_tensor(self._output["index"])


def read_metadata(path: str | os.PathLike) -> dict[str, Any]:
    """Reads what an encoder says of itself.

    Args:
        path: The file or folder.

    Raises:
        InvalidInputError: If there is none, or it is no encoder of `save_encoder`.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise InvalidInputError(f"{path} does not exist; expected an encoder.")
    problem = InvalidInputError(
        f"{path} is no encoder as export writes it, or it is damaged: expected a "
        f".keras or .tflite file or a SavedModel folder with {_METADATA} in it."
    )
    try:
        if path.is_dir():
            text = (path / _EXTRA_FOLDER / _METADATA).read_text("utf-8")
        else:
            files.check_regular(path)
            with zipfile.ZipFile(path) as archive:
                text = archive.read(_METADATA).decode()
        metadata = json.loads(text)
    # What zipfile raises for damaged files is more than BadZipFile.
    except Exception as error:
        raise problem from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT_NAME:
        raise problem
    if metadata.get("version") != _VERSION:
        raise InvalidInputError(
            f"{path} is an encoder of version {metadata.get('version')}, and this "
            f"program knows version {_VERSION}."
        )
    if not isinstance(metadata.get("embedding_dim"), int):
        raise problem
    return metadata


def is_tflite(path: str | os.PathLike) -> bool:
    """Whether a file is a TFLite model, by what TFLite itself knows it by."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == b"TFL3"


def _first_line(error: Exception) -> str:
    return files.error_text((str(error).splitlines() or [type(error).__name__])[0])
