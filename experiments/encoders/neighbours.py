"""Shows the nearest neighbours of images on a page, one HTML file.

    ./run.sh neighbours --model=encoder.keras --images=DIR --output=page/

writes page/index.html: queries with their nearest images and the distances, framed as
right or wrong, the worst queries first, with a filter by class and by distance and a
list of the most confused classes. It needs no network; 100 queries take about 2 MB.
"""

import dataclasses
import pathlib

import numpy as np

from experiments.common import config, program
from experiments.encoders import page, vectors
from tff_fedss import files, metrics
from tff_fedss.datasets import fingerprint
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Config(vectors.VectorsConfig):
    """The flags of the program."""

    num_queries: int = config.flag(
        100, "How many queries to show, or fewer if there are fewer images.", low=1
    )
    num_neighbours: int = config.flag(
        10, "How many neighbours to show for each query.", low=1, high=100
    )
    output: str | None = config.flag(
        None,
        "The folder to write index.html into.",
        needed="DIR is needed: the folder for the page.",
    )


def main(config: Config) -> None:
    """Finds neighbours and writes the page."""
    folder = pathlib.Path(config.output)
    if folder.exists() and not folder.is_dir():
        raise InvalidInputError(f"--output={folder} is a file; expected a folder.")
    encoder = config.load_encoder()
    images = config.load_images()
    if len(images) <= config.num_neighbours:
        raise InvalidInputError(
            f"--images={config.images}: {len(images)} images have fewer than "
            f"--num_neighbours={config.num_neighbours} others."
        )
    if len(images.class_names) == len(images):
        raise InvalidInputError(
            f"--images={config.images}: every image is alone in its class: there is "
            "nothing to find."
        )
    features = config.load_vectors(encoder, images)
    found = find(features, images.labels, config.num_neighbours, config.num_queries)
    num_right = sum(query.num_right for query in found)
    most_right = sum(query.most_right for query in found)
    summary = (
        f"{len(found):,} queries, from {len(images):,} images of "
        f"{len(images.class_names):,} classes: {100 * num_right / most_right:.1f} % of "
        f"what could be right among the {config.num_neighbours} nearest is right."
    )
    if metrics.is_approximate(len(images), len(found)):
        summary += f" {metrics.APPROXIMATE}"
    warning = vectors.collapse_warning(features)
    text = page.render(
        f"Neighbours in {images.name}",
        f"{warning} {summary}".strip(),
        found,
        lambda row: images.class_names[images.labels[row]],
        images.image_name,
        images.encoded,
    )
    files.make_folder(folder, f"--output={folder}")
    files.write_text(folder / "index.html", text)
    if warning:
        print(warning)
    print(f"{folder / 'index.html'}: {summary} {len(text.encode()):,} bytes")


def find(
    features: np.ndarray, labels: np.ndarray, num_neighbours: int, num_queries: int
) -> list[page.Query]:
    """Finds the queries and neighbours to show.

    Args:
        features: float32[images, d], of length 1.
        labels: int[images].
        num_neighbours: Number for each query.
        num_queries: Largest number, evenly spread over the images. One that is alone in
            its class is no query.

    Returns:
        Queries, sorted by the share of possible right neighbours, then by the distance
        of the nearest wrong image.
    """
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    most = np.minimum(sizes[class_of] - 1, num_neighbours)
    asked = np.flatnonzero(most)
    if not len(asked):
        return []
    asked = asked[fingerprint.evenly_spaced(len(asked), num_queries)]
    nearest = metrics.search_for(features, len(asked))(features, num_neighbours, asked)
    is_right = labels[nearest] == labels[asked, np.newaxis]
    units = features.astype(np.float64)
    distances = np.linalg.norm(units[nearest] - units[asked, np.newaxis], axis=2)
    share = is_right.sum(1) / most[asked]
    nearest_wrong = np.where(is_right, np.inf, distances).min(1)
    order = np.lexsort((asked, nearest_wrong, share))

    def query(k: int) -> page.Query:
        columns = (values[k].tolist() for values in (nearest, distances, is_right))
        found = [page.Neighbour(*one) for one in zip(*columns, strict=True)]
        return page.Query(int(asked[k]), found, int(most[asked[k]]))

    return [query(k) for k in order]


if __name__ == "__main__":
    program.run(main, Config())
