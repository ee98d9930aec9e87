"""A trained feature extractor as a file: images in, unit vectors out.

The file contains the preprocessing of images, phi, and the division by the length. It
has Keras's own layers only, so that it loads without this project, and its
`tff_fedss.json` has its provenance:

    encoder = tf.keras.models.load_model("encoder.keras")
    vectors = encoder(images)  # uint8[N, height, width, 3] to float32[N, d]

SavedModel, TFLite and ONNX refuse images of another type. Keras would cast them, so a
.keras file checks the values instead: floats that are not whole numbers in 0..255 are
refused.
"""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_fedss import files, unpacking
from tff_fedss.errors import InvalidInputError, check_choice
from tff_fedss.models import foreign_files
from tff_fedss.models.cosine_classifier import unit
from tff_fedss.models.image_input import ImageInput
from tff_fedss.models.layers import without_counts

_METADATA = "tff_fedss.json"
# TensorFlow's folder for additional files of a SavedModel.
_EXTRA_FOLDER = "assets.extra"
_OPSET = 17
_MAX_BATCH = 32
_MAX_BATCH_PIXELS = 1 << 23


def with_input_and_length(
    phi: tf.keras.Model,
    image_input: ImageInput,
    *,
    of_keras_layers: bool = True,
    checks_values: bool = False,
) -> tf.keras.Model:
    """Puts the preprocessing of images before phi, and a division by the length after.

    Args:
        phi: The trained model, from float32[examples, image_size, image_size,
            channels], with values in 0..255, to float32[examples, d].
        of_keras_layers: Whether to replace this project's layers by Keras's own, which
            give the same up to rounding, so that the model loads without this project.
        checks_values: Whether the model accepts numbers of any type that Keras casts,
            and refuses those that are not values of uint8.

    Returns:
        A model from uint8[N, height, width, 3], of any height and width, to float32[N,
        d] of length 1. Phi, or its copy, is one of its layers, under its name.
    """
    dtype = tf.float32 if checks_values else tf.uint8
    images = tf.keras.Input([None, None, 3], dtype=dtype, name="images")
    pixels = _checked(images) if checks_values else images
    layers = _copy(phi) if of_keras_layers else phi
    vectors = unit(layers(image_input(_not_none(pixels))))[: tf.shape(images)[0]]
    vectors = tf.keras.layers.Activation("linear", name="vectors")(vectors)
    return tf.keras.Model(images, vectors, name="encoder")


def _not_none(images: tf.Tensor) -> tf.Tensor:
    """Returns the images; if there are none, a black one, as GroupNorm needs one."""
    missing = tf.maximum(1 - tf.shape(images)[0], 0)
    black = tf.zeros_like(tf.reduce_sum(tf.cast(images, tf.int32), 0, keepdims=True))
    return tf.concat([images, tf.cast(black, tf.uint8)[:missing]], 0)


def _checked(images: tf.Tensor) -> tf.Tensor:
    """Returns the numbers as uint8, if they are whole and in 0..255."""
    whole = tf.clip_by_value(tf.round(images), 0.0, 255.0)
    # 0 for valid values; else -1, whose root is NaN, which the check finds.
    zero = tf.cast(tf.equal(whole, images), tf.float32) - 1.0
    checked = tf.debugging.check_numerics(
        whole + tf.math.sqrt(zero), "images must be uint8, 0..255"
    )
    return tf.cast(checked, tf.uint8)


def _copy(phi: tf.keras.Model) -> tf.keras.Model:
    """Copies phi with Keras's own layers: the same function and weights."""

    def copy(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
        if hasattr(layer, "as_keras"):
            return layer.as_keras()
        return type(layer).from_config(layer.get_config())

    result = tf.keras.models.clone_model(phi, clone_function=copy)
    result.set_weights([v.numpy() for v in without_counts(phi, phi.weights)])
    return result


def save_encoder(
    phi: tf.keras.Model,
    image_input: ImageInput,
    path: str | os.PathLike,
    kind: str,
    facts: Mapping[str, Any],
) -> None:
    """Writes an encoder, whole or not at all.

    A TFLite file accepts other image sizes after `resize_tensor_input`, and needs
    TensorFlow's operations in addition to TFLite's, which has no antialiasing (the Flex
    delegate, a part of the interpreter in the `tensorflow` package).

    Args:
        phi: See `with_input_and_length`.
        path: A file, or the folder of a SavedModel. An existing encoder is replaced;
            another folder is not.
        kind: One of `FORMATS`.
        facts: Further metadata, for JSON.

    Raises:
        InvalidInputError: If there can be no such file.
        RunStoppedError: If it cannot be written.
    """
    path = pathlib.Path(path)
    check_output(path, kind)
    metadata = {
        "encoder": kind,
        "embedding_dim": phi.output_shape[-1],
        "image_input": dataclasses.asdict(image_input),
        **facts,
    }
    text = json.dumps(metadata, indent=2) + "\n"
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp{path.suffix}")
    before = temporary.with_suffix(".before")
    with files.writing(path):
        try:
            FORMATS[kind].write(phi, image_input, temporary)
            if temporary.is_dir():
                (temporary / _EXTRA_FOLDER).mkdir(exist_ok=True)
                (temporary / _EXTRA_FOLDER / _METADATA).write_text(text, "utf-8")
            elif kind == "onnx":
                _add_to_onnx(temporary, text)
            else:
                # A .keras file is a zip; to a TFLite file a zip is appended, like
                # TFLite's own metadata.
                with zipfile.ZipFile(temporary, "a") as archive:
                    archive.writestr(zipfile.ZipInfo(_METADATA), text)
            if path.is_dir():  # Which no folder can replace.
                os.replace(path, before)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(before, ignore_errors=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.unlink(missing_ok=True)


def check_output(path: str | os.PathLike, kind: str) -> None:
    """Checks in advance that an encoder may be written to a path.

    Raises:
        InvalidInputError: If it may not.
    """
    check_choice("kind", kind, FORMATS)
    path = pathlib.Path(path)
    if kind in ("keras", "onnx") and path.suffix != f".{kind}":
        raise InvalidInputError(f"{path} must end in .{kind}.")
    is_folder = kind == "saved_model"
    is_encoder = (path / _EXTRA_FOLDER / _METADATA).is_file()
    is_new = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if (is_folder and not (is_new or is_encoder)) or (not is_folder and path.is_dir()):
        raise InvalidInputError(
            f"{path} already exists and is no encoder of this format: give another "
            "path."
        )
    if not path.parent.is_dir():
        raise InvalidInputError(f"{path} cannot be written: no folder {path.parent}.")


class ExportedEncoder:
    """An encoder that `save_encoder` wrote, in any of its formats.

    Attributes:
        path: Its file or folder.
        metadata: See `read_metadata`.
        embedding_dim: d.
    """

    def __init__(self, path: str | os.PathLike):
        """Loads an encoder from a file or folder.

        Raises:
            InvalidInputError: If it is missing, no such encoder, or damaged.
        """
        self.path = pathlib.Path(path)
        self.metadata = read_metadata(path)
        self.embedding_dim = int(self.metadata["embedding_dim"])
        try:
            self._apply = FORMATS[self.metadata["encoder"]].load(self.path)
            self._apply(np.zeros([1, 9, 10, 3], np.uint8))
        # TensorFlow's errors for damaged files are not documented.
        except Exception as error:
            text = files.error_text(error)[:300]
            message = f"{path} cannot be loaded as an encoder: {text}."
            raise InvalidInputError(message) from error

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the file, or of the folder's files."""
        return files.tree_sha256(self.path)

    def embed(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Embeds uint8[height, width, 3] of any sizes: float32[N, d], of length 1.

        Images of one size are processed together, as far as memory allows. The
        same images in the same order give the same bytes; together with other
        images, a vector may differ in its last bits.
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


def read_metadata(path: str | os.PathLike) -> dict[str, Any]:
    """Reads the metadata of an encoder from its file or folder.

    They are the format ("encoder"), d ("embedding_dim"), the preprocessing
    ("image_input") and the `facts` of `save_encoder`. Raises InvalidInputError if
    it is missing, or no encoder.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise InvalidInputError(f"{path} does not exist; expected an encoder.")
    try:
        if path.is_dir():
            text = (path / _EXTRA_FOLDER / _METADATA).read_text("utf-8")
        elif path.suffix == ".onnx":
            text = _metadata_of_onnx(path)
        else:
            with unpacking.Zip(path) as archive:
                text = foreign_files.read_text(archive, _METADATA)
        metadata = json.loads(text)
        return {**metadata, "encoder": metadata["encoder"]}
    # zipfile raises more than BadZipFile for damaged files.
    except Exception as error:
        raise InvalidInputError(
            f"{path} is not an encoder written by export, or is damaged: expected a "
            f".keras, .tflite or .onnx file or a SavedModel folder with {_METADATA}."
        ) from error


_Apply = Callable[[np.ndarray], np.ndarray]


class _Format(NamedTuple):
    """A format: writes a model to a path, and loads it as a function of images."""

    write: Callable[[tf.keras.Model, ImageInput, pathlib.Path], None]
    load: Callable[[pathlib.Path], _Apply]


def _write_keras(phi, image_input, path) -> None:
    with_input_and_length(phi, image_input, checks_values=True).save(path)


def _load_keras(path: pathlib.Path) -> _Apply:
    model = foreign_files.load_keras(path)
    spec = tf.TensorSpec([None, None, None, 3], tf.uint8)
    graph = tf.function(
        lambda images: model(images, training=False), input_signature=[spec]
    )
    return lambda images: graph(images).numpy()


def _write_saved_model(phi, image_input, path) -> None:
    model = with_input_and_length(phi, image_input)
    model.save(path, include_optimizer=False, save_format="tf")


def _load_saved_model(path: pathlib.Path) -> _Apply:
    loaded = tf.saved_model.load(path)

    def apply(images: np.ndarray) -> np.ndarray:
        outputs = loaded.signatures["serving_default"](tf.constant(images))
        return outputs["vectors"].numpy()

    return apply


def _write_tflite(phi, image_input, path) -> None:
    # TFLite converts Keras's GroupNorm to five-dimensional sums, which it cannot run.
    model = with_input_and_length(phi, image_input, of_keras_layers=False)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    # Antialiasing, which the delegate supports but does not list.
    converter.target_spec.experimental_select_user_tf_ops = ["ScaleAndTranslate"]
    path.write_bytes(converter.convert())


def _load_tflite(path: pathlib.Path) -> _Apply:
    content = path.read_bytes()

    # TFLite's delegate for the CPU may refuse more images than before.
    @functools.lru_cache(maxsize=1)
    def interpreter_for(shape: tuple[int, ...]) -> tf.lite.Interpreter:
        interpreter = tf.lite.Interpreter(
            model_content=content, num_threads=os.cpu_count()
        )
        (inputs,) = interpreter.get_input_details()
        interpreter.resize_tensor_input(inputs["index"], shape)
        interpreter.allocate_tensors()
        return interpreter

    def apply(images: np.ndarray) -> np.ndarray:
        interpreter = interpreter_for(images.shape)
        (inputs,) = interpreter.get_input_details()
        (outputs,) = interpreter.get_output_details()
        interpreter.set_tensor(inputs["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(outputs["index"])

    return apply


def _write_onnx(phi, image_input, path) -> None:
    import tf2onnx  # Imported only here, with its dependencies.

    spec = tf.TensorSpec([None, None, None, 3], tf.uint8, name="images")

    @tf.function(input_signature=[spec], autograph=False)
    def encoder(images: tf.Tensor) -> dict[str, tf.Tensor]:
        pixels = image_input(_not_none(images), of_basic_ops=True)
        vectors = unit(phi(pixels, training=False))
        return {"vectors": vectors[: tf.shape(images)[0]]}

    tf2onnx.convert.from_function(
        encoder, input_signature=[spec], opset=_OPSET, output_path=str(path)
    )


def _add_to_onnx(path: pathlib.Path, metadata: str) -> None:
    import onnx

    model = onnx.load(path)
    # tf2onnx lists constants after the images, of which ONNX Runtime would warn.
    del model.graph.input[1:]
    model.metadata_props.add(key=_METADATA, value=metadata)
    onnx.save(model, path)


def _metadata_of_onnx(path: pathlib.Path) -> str:
    import onnx

    properties = onnx.load(path).metadata_props
    return {entry.key: entry.value for entry in properties}[_METADATA]


def _load_onnx(path: pathlib.Path) -> _Apply:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # Errors only.
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    return lambda images: session.run(["vectors"], {"images": images})[0]


FORMATS = {
    "keras": _Format(_write_keras, _load_keras),
    "saved_model": _Format(_write_saved_model, _load_saved_model),
    "tflite": _Format(_write_tflite, _load_tflite),
    "onnx": _Format(_write_onnx, _load_onnx),
}
