"""Where the images of Google Landmarks v2 come from: files, or the original tars."""

import abc
import concurrent.futures
import pathlib
from collections.abc import Collection

from tff_fedss import files, progress
from tff_fedss.datasets import formats, sources
from tff_fedss.errors import InvalidInputError


class NoImageError(Exception):
    """An image that is missing or that cannot be read.

    Attributes:
        path: Where it should be.
        reason: What is wrong, to follow the path: "is missing".
    """

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


class Images(abc.ABC):
    """Images by their ids."""

    def read(self, image_id: str) -> bytes:
        """Returns the content of an image that can be decoded whole.

        Raises:
            NoImageError: If it is not there, or is damaged.
        """
        path, encoded = self._read(image_id)
        try:
            formats.check(encoded)
        except ValueError as e:
            raise NoImageError(path, str(e)) from e
        return encoded

    @abc.abstractmethod
    def _read(self, image_id: str) -> tuple[str, bytes]:
        """Returns the path, for messages, and the content of an image."""


class FolderOfImages(Images):
    """Images in files, flat or in the tree of the original archives."""

    def __init__(self, folder: pathlib.Path):
        if not folder.is_dir():
            raise InvalidInputError(
                f"image_dir={folder} is no folder; expected one with <id>.jpg or "
                "a/b/c/<id>.jpg."
            )
        self._folder = str(folder)

    def _read(self, image_id: str) -> tuple[str, bytes]:
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


class ShardsOfImages(Images):
    """Images in the original `images_NNN.tar`, read where they lie."""

    def __init__(self, folder: pathlib.Path, image_ids: Collection[str]):
        """Finds the images in the archives.

        Args:
            folder: Of the archives; there may be fewer than 500.
            image_ids: The images that will be asked for.

        Raises:
            InvalidInputError: If there is no archive, or one is damaged or cut off.
        """
        self._folder = folder
        self._shards = sorted(folder.glob("images_*.tar"))
        if not self._shards:
            raise InvalidInputError(
                f"shard_dir={folder}: found no images_NNN.tar; expected those of "
                "Google Landmarks v2, images_000.tar to images_499.tar."
            )
        self._found = {}
        image_ids = frozenset(image_ids)

        def listed(shard: pathlib.Path) -> sources.Tar:
            try:
                return sources.Tar(shard)
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
                pool.map(listed, self._shards),
            ) as tars,
        ):
            for tar in tars:
                for row, name in enumerate(tar.names):
                    image_id = name.rpartition("/")[2].removesuffix(".jpg")
                    if image_id in image_ids:
                        self._found.setdefault(
                            image_id, (tar.path, tar.starts[row], tar.sizes[row])
                        )

    def _read(self, image_id: str) -> tuple[str, bytes]:
        if image_id not in self._found:
            raise NoImageError(
                f"{self._folder}/*/{image_id}.jpg",
                f"is in none of the {len(self._shards)} shards",
            )
        shard, offset, size = self._found[image_id]
        path = f"{shard}:{image_id}.jpg"
        try:
            with open(shard, "rb") as file:
                file.seek(offset)
                return path, file.read(size)
        except OSError as e:
            raise NoImageError(path, f"cannot be read: {e.strerror}") from e
