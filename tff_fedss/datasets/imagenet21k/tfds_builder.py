"""ImageNet-21k as a data set of TensorFlow Datasets (TFDS), from the class tars.

Apart from `imagenet21k`, because importing TFDS takes seconds.
"""

import os
import pathlib

import tensorflow_datasets as tfds

from tff_fedss import errors
from tff_fedss.datasets.imagenet21k import class_tars, preparation, shards

_ARCHIVES = ("fall11_whole.tar", "winter21_whole.tar.gz")


class _Info(tfds.core.DatasetInfo):
    """Information that is only found on disk."""

    def initialize_from_bucket(self) -> None:
        """Does not ask for it on the network, as TFDS does for its own data sets."""


class Imagenet21k(tfds.core.dataset_builder.FileReaderBuilder):
    """The images of ImageNet-21k with a random 80-20 split (FedSS, Appendix A.4).

    It is prepared as any data set of TFDS is, and then can be read without this class,
    by `tfds.load("imagenet21k", data_dir=...)`. Only the writing is our own. TFDS
    starts over whenever it is interrupted, and puts all records into temporary files to
    shuffle them, which takes the disk twice. Here, what is written stays, in a folder
    `1.0.0.partial` that becomes `1.0.0` when all is there; see `preparation`.

    A shard has one class, so shuffle over many of them: `tfds.load(...,
    shuffle_files=True)` and a large `shuffle`.
    """

    VERSION = tfds.core.Version(shards.VERSION)
    RELEASE_NOTES = {"1.0.0": "A shard of each class and split."}  # noqa: RUF012
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Put fall11_whole.tar or winter21_whole.tar.gz, which image-net.org gives to "
        "those who accept its terms, into manual_dir; or name it with archive=."
    )

    def __init__(
        self,
        *,
        archive: os.PathLike | None = None,
        seed: int = 0,
        workers: int | None = None,
        wnids_file: os.PathLike | None = None,
        allow_undecodable: bool = False,
        **kwargs,
    ):
        """Reads nothing yet.

        Args:
            archive: A folder of class tars, a tar of them, or such a tar gzipped. If
                None, it is looked for in TFDS's manual_dir.
            seed: Which split.
            workers: How many classes are worked on at once; by default the number of
                cores.
            wnids_file: A file with the wnid of every class; see
                `class_tars.open_archive`.
            allow_undecodable: Whether to go on without images that cannot be decoded.
            **kwargs: Passed on to TFDS: data_dir, ...

        Raises:
            errors.InvalidInputError: If an argument is out of range.
        """
        if seed < 0:
            raise errors.InvalidInputError(f"seed={seed} must be at least 0.")
        if workers is not None and workers < 1:
            raise errors.InvalidInputError(f"workers={workers} must be at least 1.")
        super().__init__(**kwargs)
        self._archive = archive
        self._seed = seed
        self._workers = workers or len(os.sched_getaffinity(0))
        self._wnids_file = wnids_file
        self._allow_undecodable = allow_undecodable

    def _info(self) -> tfds.core.DatasetInfo:
        return _Info(
            builder=self,
            description=(
                "ImageNet-21k, with a random fifth of every class as its test images. "
                "Labels are the wnids in alphabetical order."
            ),
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(),
                    # Its names are set when the archive is known.
                    "label": tfds.features.ClassLabel(),
                    "file_name": tfds.features.Text(),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://www.image-net.org/",
            citation=(
                "Deng, Dong, Socher, Li, Li and Fei-Fei. ImageNet: A large-scale "
                "hierarchical image database. CVPR, 2009."
            ),
        )

    def download_and_prepare(
        self,
        *,
        download_dir: os.PathLike | None = None,
        download_config: tfds.download.DownloadConfig | None = None,
        file_format=None,
    ) -> None:
        """Writes the shards, or those that are missing after an interruption.

        Args:
            download_dir: As in TFDS; only used to find manual_dir.
            download_config: As in TFDS; only its manual_dir counts.
            file_format: None or "tfrecord".

        Raises:
            errors.InvalidInputError: If the archive cannot be used, or a data set with
                another seed is in the same place.
            preparation.UndecodableImagesError: If there are images that cannot
                be decoded, and they are not allowed.
        """
        if file_format not in (None, "tfrecord"):
            raise errors.InvalidInputError(
                f"file_format={file_format!r}: only 'tfrecord' is written."
            )
        self._download_and_prepare(
            self._manual_dir(download_dir, download_config), download_config
        )

    def _download_and_prepare(self, dl_manager, download_config) -> None:
        del download_config
        final = pathlib.Path(self.data_dir)
        partial = final.with_name(f"{final.name}.partial")
        if self.is_prepared():
            self._check_seed(final)
            preparation.delete_progress(final)
            return
        archive = class_tars.open_archive(
            self._archive or _find_archive(dl_manager),
            cache_dir=preparation.progress_folder(partial),
            wnids_file=self._wnids_file,
        )
        summary = preparation.write(
            archive,
            partial,
            seed=self._seed,
            workers=self._workers,
            allow_undecodable=self._allow_undecodable,
        )
        self.info.features["label"].names = archive.wnids
        self.info.set_splits(
            tfds.core.splits.SplitDict(
                [
                    tfds.core.SplitInfo(
                        name=split,
                        shard_lengths=[int(size) for size in summary.sizes[split]],
                        num_bytes=summary.num_bytes[split],
                        filename_template=tfds.core.ShardedFileTemplate(
                            data_dir=final,
                            dataset_name=self.name,
                            split=split,
                            filetype_suffix="tfrecord",
                        ),
                    )
                    for split in shards.SPLITS
                ]
            )
        )
        self.info.write_to_directory(partial)
        # From here on the data set is there, all of it.
        os.replace(partial, final)
        preparation.delete_progress(final)
        self.info.read_from_directory(self.data_dir)

    def _check_seed(self, folder: pathlib.Path) -> None:
        found = shards.read_preparation(folder)["seed"]
        if found != self._seed:
            raise errors.InvalidInputError(
                f"{folder} has been prepared with seed={found}, not {self._seed}. "
                "Give another `output_dir`, or delete it."
            )

    def _manual_dir(self, download_dir, download_config) -> pathlib.Path:
        if download_config is not None and download_config.manual_dir:
            return pathlib.Path(download_config.manual_dir)
        root = download_dir or pathlib.Path(self.data_dir_root) / "downloads"
        return pathlib.Path(root) / "manual"


def _find_archive(folder: pathlib.Path) -> pathlib.Path:
    found = [folder / name for name in _ARCHIVES if (folder / name).exists()]
    if len(found) != 1:
        raise errors.InvalidInputError(
            f"{folder} has {len(found)} of {' and '.join(_ARCHIVES)}; expected one, or "
            "archive= to name it."
        )
    return found[0]
