"""Sources of the images of Google Landmarks v2: files, or the original tars."""

import concurrent.futures
import os
import pathlib
from collections.abc import Callable, Collection

from tff_fedss import progress, unpacking
from tff_fedss.datasets import formats, sources
from tff_fedss.errors import InvalidInputError


class NoImageError(Exception):
    """An image that is missing or that cannot be read.

    Attributes:
        path: Its expected path.
        reason: The reason, to follow the path: "is missing".
    """

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


# A function from an image's id to its path, for messages, and its content.
Images = Callable[[str], tuple[str, bytes]]


def read_whole(images: Images, image_id: str) -> bytes:
    """Returns the content of an undamaged image.

    Raises:
        NoImageError: If it is missing or damaged.
    """
    path, encoded = images(image_id)
    try:
        formats.check(encoded)
    except ValueError as e:
        raise NoImageError(path, str(e)) from e
    return encoded


def in_folder(folder: pathlib.Path) -> Images:
    """Finds images in files, flat or in the tree of the original archives."""
    if not folder.is_dir():
        raise InvalidInputError(
            f"image_dir={folder} is no folder of <id>.jpg or a/b/c/<id>.jpg."
        )

    def read(image_id: str) -> tuple[str, bytes]:
        flat = f"{folder}/{image_id}.jpg"
        tree = f"{folder}/{'/'.join(image_id[:3])}/{image_id}.jpg"
        path = tree if os.path.exists(tree) else flat
        try:
            return path, pathlib.Path(path).read_bytes()
        except FileNotFoundError as e:
            raise NoImageError(flat, "is missing") from e
        except OSError as e:
            raise NoImageError(path, f"cannot be read: {e.strerror}") from e

    return read


def in_shards(folder: pathlib.Path, image_ids: Collection[str]) -> Images:
    """Finds images in the original `images_NNN.tar`, which are not unpacked.

    Args:
        folder: Folder of the archives; there may be fewer than 500.
        image_ids: The images that will be requested.
    """
    shards = sorted(folder.glob("images_*.tar"))
    if not shards:
        raise InvalidInputError(
            f"shard_dir={folder}: found none of images_000.tar to images_499.tar."
        )
    image_ids, found = frozenset(image_ids), {}

    def listed(shard: pathlib.Path) -> sources.Tar:
        with sources.reading(str(shard)):
            return sources.Tar(shard)

    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        progress.bar(
            "Looking into the shards", len(shards), "shards", pool.map(listed, shards)
        ) as tars,
    ):
        for tar in tars:
            for row, name in enumerate(tar.names):
                image_id = name.rpartition("/")[2].removesuffix(".jpg")
                if image_id in image_ids:
                    found.setdefault(
                        image_id, (tar.path, tar.starts[row], tar.sizes[row])
                    )

    def read(image_id: str) -> tuple[str, bytes]:
        if image_id not in found:
            raise NoImageError(
                f"{folder}/*/{image_id}.jpg", f"is in none of the {len(shards)} shards"
            )
        shard, offset, size = found[image_id]
        path = f"{shard}:{image_id}.jpg"
        if size > unpacking.LARGEST:
            raise NoImageError(path, f"has {size:,} bytes")
        try:
            with open(shard, "rb") as file:
                file.seek(offset)
                return path, file.read(size)
        except OSError as e:
            raise NoImageError(path, f"cannot be read: {e.strerror}") from e

    return read
