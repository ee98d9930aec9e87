"""Where the images of Google Landmarks v2 come from: files, or the original tars."""

import concurrent.futures
import pathlib
from collections.abc import Collection
from typing import Protocol

from tff_fedss import files, progress
from tff_fedss.datasets import formats, sources
from tff_fedss.errors import InvalidInputError


class NoImageError(Exception):
    """An image that is missing or that cannot be read; see its two arguments.

    Attributes:
        path: Where it should be.
        reason: What is wrong, to follow the path: "is missing".
    """

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


class Images(Protocol):
    """Where images come from."""

    def read(self, image_id: str) -> tuple[str, bytes]:
        """Returns the path, for messages, and the content of one image.

        Raises:
            NoImageError: If it is not there.
        """


class FolderOfImages:
    """Images in files, flat or in the tree of the original archives."""

    def __init__(self, folder: pathlib.Path):
        self._folder = str(folder)

    def read(self, image_id: str) -> tuple[str, bytes]:
        """See `Images`."""
        flat = f"{self._folder}/{image_id}.jpg"
        tree = f"{self._folder}/{'/'.join(image_id[:3])}/{image_id}.jpg"
        for path in (flat, tree):
            try:
                return path, files.read(path)
            except FileNotFoundError:
                continue
            except OSError as e:
                raise NoImageError(path, f"cannot be read: {e.strerror}") from e
        raise NoImageError(flat, "is missing")


class ShardsOfImages:
    """Images in the original `images_NNN.tar`, read where they lie."""

    def __init__(
        self, folder: pathlib.Path, image_ids: Collection[str], cache_dir: pathlib.Path
    ):
        """Finds the images in the archives.

        Args:
            folder: Of the archives; there may be fewer than 500.
            image_ids: The images that will be asked for.
            cache_dir: Remembers where the images are in each archive.

        Raises:
            InvalidInputError: If an archive is damaged or cut off.
        """
        self._shards = _shards_in(folder)
        self._folder = folder
        self._places = {}
        image_ids = frozenset(image_ids)

        def listed(shard: pathlib.Path) -> sources.Tar:
            try:
                return sources.Tar(shard, cache_dir)
            except sources.DAMAGED as e:
                raise InvalidInputError(
                    f"{shard}: not a whole tar archive ({files.error_text(e)}); "
                    "download it again."
                ) from e

        with (
            concurrent.futures.ThreadPoolExecutor() as pool,
            progress.bar(
                "Looking into the shards",
                len(self._shards),
                "shards",
                enumerate(pool.map(listed, self._shards)),
            ) as tars,
        ):
            for number, tar in tars:
                for row, name in enumerate(tar.names):
                    image_id = name.rpartition("/")[2].removesuffix(".jpg")
                    if image_id in image_ids:
                        place = (number, tar.starts[row], tar.sizes[row])
                        self._places.setdefault(image_id, place)

    def read(self, image_id: str) -> tuple[str, bytes]:
        """See `Images`."""
        if image_id not in self._places:
            raise NoImageError(
                f"{self._folder}/*/{image_id}.jpg",
                f"is in none of the {len(self._shards)} shards",
            )
        number, offset, size = self._places[image_id]
        path = f"{self._shards[number]}:{image_id}.jpg"
        try:
            with open(self._shards[number], "rb") as file:
                file.seek(offset)
                return path, file.read(size)
        except OSError as e:
            raise NoImageError(path, f"cannot be read: {e.strerror}") from e


def _shards_in(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("images_*.tar"))


def read_whole(images: Images, image_id: str) -> bytes:
    """Returns the content of an image that can be decoded whole.

    Raises:
        NoImageError: If it is not there, or is damaged.
    """
    path, encoded = images.read(image_id)
    try:
        formats.check(encoded)
    except ValueError as e:
        raise NoImageError(path, str(e)) from e
    return encoded


def check_choice(image_dir: str | None, shard_dir: str | None) -> None:
    """Checks that one of the two is given.

    Raises:
        InvalidInputError: If none is, or both are.
    """
    if (image_dir is None) == (shard_dir is None):
        raise InvalidInputError(
            "exactly one of `image_dir` (a folder of jpgs) and `shard_dir` (a folder "
            "of images_NNN.tar) must be given."
        )


def check(image_dir: str | None, shard_dir: str | None) -> None:
    """Checks that images may come from there, before anything is written.

    Args:
        image_dir: A folder of images.
        shard_dir: Instead: the folder of the original archives.

    Raises:
        InvalidInputError: If there is no such folder, or nothing in it to read.
    """
    if image_dir is not None:
        if not pathlib.Path(image_dir).is_dir():
            raise InvalidInputError(
                f"image_dir={image_dir} is no folder; expected one with "
                "<id>.jpg or a/b/c/<id>.jpg."
            )
        return
    shards = _shards_in(pathlib.Path(shard_dir))
    if not shards:
        raise InvalidInputError(
            f"shard_dir={shard_dir}: found no images_NNN.tar; expected those "
            "of Google Landmarks v2, images_000.tar to images_499.tar."
        )
