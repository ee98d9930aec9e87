"""Omniglot as a federated data set of handwritten characters (Lake et al., 2015)."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from PIL import Image

from tff_fedss import progress
from tff_fedss.datasets import formats, sources, synthetic
from tff_fedss.datasets.central import identities
from tff_fedss.datasets.federated import partitioners, partitions
from tff_fedss.datasets.federated.clients import InMemoryClientData
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.errors import InvalidInputError, check_at_least, check_choice

NUM_CHARACTERS = 1623
# Characters 1..964 are the "background" set of 30 alphabets, 965..1623 the "evaluation"
# set of 20, in the numbering of the file names.
NUM_BACKGROUND_CHARACTERS = 964
NUM_DRAWERS = 20
NUM_DRAWINGS = NUM_CHARACTERS * NUM_DRAWERS
# By 0, 90, 180 and 270 degrees.
NUM_TURNS = 4

_ZIPS = ("images_background.zip", "images_evaluation.zip")
_DRAWING = re.compile(r"(?:^|/)([^/]+)/character\d+/(\d{4})_(\d{2})\.png$")


@dataclasses.dataclass(frozen=True)
class Drawings:
    """All 32,460 drawings, sorted by character and then by drawer.

    Attributes:
        images: uint8[32460, size, size, 1]; ink is 255 on 0.
        characters: int32[32460], in 1..1623.
        drawers: int32[32460], in 1..20. Drawers of different alphabets are different
            people, though they have the same numbers.
        alphabets: str[32460], the name of the character's alphabet.
    """

    images: np.ndarray
    characters: np.ndarray
    drawers: np.ndarray
    alphabets: np.ndarray


# What a drawing is called in messages, the name of its alphabet, the character in
# 1..1623, the drawer in 1..20, and the image, dark ink on white.
Drawing = tuple[str, str, int, int, Image.Image]


def collect(drawings: Iterable[Drawing], label: str, image_size: int) -> Drawings:
    """Takes drawings in any order and checks that they are Omniglot's, all of them.

    They are brought to `image_size` pixels a side by averaging areas.
    """
    images, names, alphabets = {}, {}, {}
    for name, alphabet, character, drawer, image in progress.bar(
        "Reading Omniglot", NUM_DRAWINGS, "drawings", drawings
    ):
        width, height = image.size
        if width != height or width < image_size:
            found = f"{name} is {width}x{height} pixels"
            raise InvalidInputError(
                f"{label}: {found}; expected a square of {image_size=} or more."
            )
        image = image.convert("L")
        if width > image_size:
            image = image.resize((image_size, image_size), Image.Resampling.BOX)
        pixels = 255 - np.asarray(image)
        key = (character, drawer)
        if not np.array_equal(images.setdefault(key, pixels), pixels):
            raise InvalidInputError(
                f"{label}: {names[key]} and {name} are one drawing but differ."
            )
        names[key], alphabets[character] = name, alphabet
    expected = [
        (character, drawer)
        for character in range(1, NUM_CHARACTERS + 1)
        for drawer in range(1, NUM_DRAWERS + 1)
    ]
    for character, drawer in sorted(set(expected) ^ images.keys())[:1]:
        raise InvalidInputError(
            f"{label}: found {len(images):,} <Alphabet>/characterNN/XXXX_YY.png, not "
            f"{NUM_DRAWINGS:,}: {character:04}_{drawer:02}.png is missing, or too many."
        )
    characters, drawers = np.array(expected, np.int32).T
    return Drawings(
        np.stack([images[key] for key in expected])[..., None],
        characters,
        drawers,
        np.array([alphabets[character] for character, _ in expected]),
    )


def read_drawings(data_dir: str | os.PathLike | None, image_size: int) -> Drawings:
    """Reads and checks every drawing.

    Files are recognized by `<Alphabet>/characterNN/XXXX_YY.png` at the end of their
    path, with XXXX the number of the character and YY the drawer; others are ignored.

    Args:
        data_dir: A folder with such files somewhere below it; or, if it has none, a
            folder with archives of them (such as the original `images_background.zip`
            and `images_evaluation.zip`); or the path of one archive. None: they are
            downloaded through TFDS.
        image_size: See `collect`.
    """
    check_at_least(1, image_size=image_size)
    if data_dir is None:
        label = "Omniglot"
        found = [sources.open_source(path, label) for path in _downloaded()]
    else:
        label = f"data_dir={os.fspath(data_dir)}"
        found = _sources(data_dir, label)
    return collect(_drawings(found), label, image_size)


def _downloaded() -> list[pathlib.Path]:
    """Returns the original zips, which TFDS downloads into its folder and verifies."""
    # It takes seconds to import.
    import tensorflow_datasets as tfds

    from tff_fedss.datasets.images import tfds_index

    builder = tfds.image_classification.Omniglot()
    folder = pathlib.Path(builder.data_dir).parents[1] / "downloads"
    hint = "Give a folder or an archive that has it as `data_dir`."
    with tfds_index.preparing("Omniglot", hint):
        manager = tfds.download.DownloadManager(
            download_dir=folder,
            manual_dir=folder / "manual",
            url_infos=builder.url_infos,
            dataset_name=builder.name,
            force_checksums_validation=True,
        )
        return manager.download([u for u in builder.url_infos if u.endswith(_ZIPS)])


def _sources(data_dir: str | os.PathLike, label: str) -> list[sources.Source]:
    source, path = sources.open_source(data_dir, label), pathlib.Path(data_dir)
    if not path.is_dir() or any(map(_DRAWING.search, source.names)):
        return [source]
    archives = sorted(filter(sources.is_archive, path.glob("[!.]*")))
    return [sources.open_source(archive, label) for archive in archives]


def _drawings(found: Iterable[sources.Source]) -> Iterator[Drawing]:
    for source in found:
        for name, content in source.read_all(_DRAWING.search):
            try:
                formats.check(content)
                image = Image.fromarray(formats.pixels(content))
            except ValueError as error:
                raise InvalidInputError(f"{source.label}: {name} {error}.") from error
            alphabet, character, drawer = _DRAWING.search(name).groups()
            yield name, alphabet, int(character), int(drawer), image


def turned(drawings: Drawings) -> Drawings:
    """Turns each drawing by 0, 90, 180 and 270 degrees counter-clockwise.

    Each turn of a character is a character of its own (Santoro et al., 2016,
    "Meta-learning with memory-augmented neural networks", section 4.2): turn t of
    character c has the number 4 * (c - 1) + t + 1, in 1..6492.

    Returns:
        Four times as many drawings: all as they are, then all turned by 90 degrees,
        and so on.
    """
    turns = range(NUM_TURNS)
    first = NUM_TURNS * (drawings.characters - 1) + 1
    return Drawings(
        np.concatenate([np.rot90(drawings.images, t, axes=(1, 2)) for t in turns]),
        np.concatenate([first + t for t in turns]),
        np.tile(drawings.drawers, NUM_TURNS),
        np.tile(drawings.alphabets, NUM_TURNS),
    )


PARTITIONS = ("mixed", "drawer", "chunks")
CHARACTERS = ("evaluation", "all")

# Separates this data set's draws from others with the same seed.
_PHILOX_STREAM = int.from_bytes(b"omniglot", "big")

# As many classes as the paper's own start, ImageNet-1k, has.
_NUM_GLYPHS = 1000


def load(
    data_dir: os.PathLike | None = None,
    *,
    partition: Literal[PARTITIONS] = "mixed",
    characters: Literal[CHARACTERS] = "evaluation",
    seed: int = 0,
    image_size: int = 28,
    test_drawers: Sequence[int] = (17, 18, 19, 20),
    classes_per_client: int = 20,
    drawings_per_class: int = 5,
    rotations: bool = False,
    retrieval: bool = False,
) -> FederatedDataset:
    """Loads Omniglot, with the 659 characters of its evaluation set as the classes.

    Every class was drawn once by each of 20 people. Some of these drawers are held out
    for the test; the others' drawings are the clients'. The 964 characters of the
    background set, of other alphabets and by other people, are the public images. The
    task is that of FedSS, section 4.2.

    For retrieval (section 4.3, where no class is both in the train and the test split),
    the 964 characters of the background set are the n classes, with all 20 drawings of
    each at the clients, and all drawings of the 659 others are the test. There, and
    with all 1,623 characters as the classes, the public images are glyphs of
    `synthetic.glyphs`.

    Args:
        data_dir: A folder of drawings, a folder of archives of them or one archive; see
            `read_drawings`. If None, they are downloaded through TFDS.
        partition: How the training drawings are split over clients. "mixed": clients
            hold about classes_per_client characters and drawings_per_class drawings of
            each, in the proportions of the paper's ImageNet-21k clients (Appendix A.4).
            "drawer": a client is a person: one drawing of every character of an
            alphabet. "chunks": as the paper's SOP clients (Section 4.3), who have
            classes_per_client * drawings_per_class drawings each, of whole characters
            except at the cuts: a character is on one or two clients.
        seed: Seed of the partition (mixed and chunks), and of the order of each
            client's examples; 0 <= seed < 2^63.
        image_size: Height and width of an image in pixels, at most those of the
            drawings (105 in the original).
        test_drawers: Which of the drawers 1..20 are held out.
        classes_per_client: For mixed and chunks: mean number of characters.
        drawings_per_class: For mixed: mean number of drawings of each; for chunks: a
            client has this number times classes_per_client drawings.
        characters: The classes: the 659 characters of "evaluation", with the 964 others
            as public images, or "all" 1,623, with glyphs as public images.
        rotations: Whether each character turned by 90, 180 and 270 degrees is a class
            of its own: 2,636 classes, 6,492 of all characters, 3,856 for retrieval.
            Public images and the test are turned, too.
        retrieval: Whether the test is of other characters; then test_drawers has no
            effect.

    Returns:
        The data set. Images are uint8[image_size, image_size, 1], ink 255 on 0; the
        label is the character's number minus 965 (public images, with all characters
        and for retrieval: minus 1). With rotations it is that, times 4, plus the
        number of quarter turns.
    """
    check_choice("partition", partition, PARTITIONS)
    check_choice("characters", characters, CHARACTERS[: 1 if retrieval else 2])
    _check_drawers(test_drawers)
    check_at_least(
        1, classes_per_client=classes_per_client, drawings_per_class=drawings_per_class
    )
    drawings = read_drawings(data_dir, image_size)
    num_background = NUM_BACKGROUND_CHARACTERS
    if rotations:
        drawings = turned(drawings)
        num_background *= NUM_TURNS

    labels = drawings.characters - 1
    is_background = labels < num_background
    is_test = np.isin(drawings.drawers, test_drawers)
    note = f"test images by drawers {_listed(test_drawers)}"
    if retrieval:
        is_train, is_test, note = is_background, ~is_background, ""
    elif characters == "all":
        is_train = ~is_test
    else:
        is_train, is_test = ~is_background & ~is_test, ~is_background & is_test
        labels[~is_background] -= num_background
    if retrieval or characters == "all":
        # No character is left for a warm start.
        public = synthetic.glyphs(
            2, image_size=image_size, num_public_classes=_NUM_GLYPHS
        ).public
        note = ", ".join(filter(None, [note, "public images are glyphs"]))
    else:
        public = HeldOut.from_arrays(
            drawings.images[is_background], labels[is_background]
        )

    train = np.flatnonzero(is_train)
    rng = partitions.generator(seed, _PHILOX_STREAM)
    if partition == "drawer":
        clients = _drawer_clients(
            drawings.alphabets[train], drawings.drawers[train], rng
        )
    elif partition == "chunks":
        size = classes_per_client * drawings_per_class
        starts = partitions.equal_sizes(len(train), size)
        clients = partitions.chunks(labels[train], starts, rng)
    else:
        mixed = partitioners.Mixed(classes_per_client, drawings_per_class)
        clients = mixed.split(labels[train], rng)
    rows_of = {client_id: train[examples] for client_id, examples in clients.items()}
    client_data = InMemoryClientData(
        {k: (drawings.images[rows], labels[rows]) for k, rows in rows_of.items()}
    )
    return FederatedDataset(
        name="omniglot",
        num_classes=int(labels[train].max()) + 1,
        image_shape=drawings.images.shape[1:],
        train=client_data,
        test=HeldOut.from_arrays(drawings.images[is_test], labels[is_test]),
        test_is_unseen=retrieval,
        public=public,
        note=note,
        contents=lambda: {
            **client_data.contents(),
            "drawings": len(drawings.images),
            "contents of drawings": drawings.images,
        },
    )


def load_identities(
    data_dir: os.PathLike | None = None,
    *,
    image_size: int = 28,
    test_drawers: Sequence[int] = (17, 18, 19, 20),
    unused_drawers: Sequence[int] = (),
) -> identities.ArrayIdentities:
    """Loads all 1,623 characters as identities, without clients (Partial FC).

    Args:
        test_drawers: Which of the drawers 1..20 of each character are held out: the
            test is of the same identities, by other hands.
        unused_drawers: Whose drawings are in neither part, such as those of the test
            where settings are chosen by other drawers.

    Returns:
        The data: images as those of `load`; the identity is the character's number
        minus 1.
    """
    _check_drawers(test_drawers, unused_drawers)
    drawings = read_drawings(data_dir, image_size)
    is_test = np.isin(drawings.drawers, test_drawers)
    is_unused = np.isin(drawings.drawers, unused_drawers)
    train, test = (
        (drawings.images[part], drawings.characters[part] - 1)
        for part in (~is_test & ~is_unused, is_test)
    )
    note = f"test images by drawers {_listed(test_drawers)}"
    return identities.ArrayIdentities("omniglot", train, test, note)


def _listed(drawers: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(drawers))))


def _check_drawers(test: Sequence[int], unused: Sequence[int] = ()) -> None:
    test, unused = tuple(test), tuple(unused)
    drawers = set(range(1, NUM_DRAWERS + 1))
    if not test or {*test} & {*unused} or not {*test, *unused} < drawers:
        found = f"test_drawers={test}"
        if unused:
            found += f" and unused_drawers={unused}, without a common one,"
        raise InvalidInputError(f"{found} must be a part of 1..20.")


def _drawer_clients(
    alphabets: np.ndarray, drawers: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Gives every person what that person drew: indices into the arguments, by client.

    A client's examples are in random order, since a local epoch takes them as they
    come.
    """
    clients = {}
    for alphabet in np.unique(alphabets):
        for drawer in np.unique(drawers):
            examples = np.flatnonzero((alphabets == alphabet) & (drawers == drawer))
            clients[f"{alphabet}_drawer{drawer:02}"] = rng.permutation(examples)
    return clients
