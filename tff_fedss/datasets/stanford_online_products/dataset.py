"""Stanford Online Products: photographs of 22,634 products (Song et al., CVPR 2016).

FedSS (Section 4.3, Appendix A.5) splits its 59,551 training images of 11,318 products
over 596 clients of 100 images and about 20 products each, and retrieves images of the
11,316 other products.

The images are read from the TFRecord files of TFDS's `stanford_online_products`, which
is made from the original archive, `Stanford_Online_Products.zip`:

    Stanford_Online_Products/Ebay_train.txt      a line per training image:
                                                 image_id class_id super_class_id path
    Stanford_Online_Products/Ebay_test.txt       likewise, of other products
    Stanford_Online_Products/<...>_final/*.JPG   the images

TFDS drops the `image_id`; `tfds_records` says how it is known all the same.
"""

import os

import numpy as np

from tff_fedss.datasets.federated import partitions, records
from tff_fedss.datasets.federated.dataset import FederatedDataset, HeldOut
from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.datasets.stanford_online_products import tfds_records
from tff_fedss.datasets.stanford_online_products.client_partition import (
    IMAGES_PER_CLIENT,
    make_partition,
    read_partition,
)
from tff_fedss.datasets.stanford_online_products.original import (
    NUM_TEST_IMAGES,
    NUM_TRAIN_CLASSES,
    NUM_TRAIN_IMAGES,
    Listing,
    find,
)

TITLE = "Stanford Online Products"


def load(
    data_dir: os.PathLike | None = None,
    *,
    image_size: int = 224,
    resize_size: int | None = None,
    images_per_client: int = IMAGES_PER_CLIENT,
    seed: int = 0,
    clients_csv: os.PathLike | None = None,
) -> FederatedDataset:
    """Loads the clients' images and the test images; no image stays in memory.

    The first call checks every image of the archive and has TFDS make its TFRecord
    files, in the folder of the archive, or where TFDS keeps its data sets if nothing
    can be written there. That takes about ten minutes, 3 GB for the files and, until
    they are finished, 3 GB for the unpacked archive. Later calls take seconds.

    An archive that is as large as the published one must have its checksum too. If it
    has another size, a line on stderr says so, and it is taken for what it is: its
    listings and images are checked in any case.

    Args:
        data_dir: One of: a folder that holds `Stanford_Online_Products.zip`, or what it
            unpacks to, `Stanford_Online_Products`, or TFDS's
            `stanford_online_products`; that zip; that unpacked folder. If None, TFDS
            downloads the zip, and everything is where TFDS keeps its data sets.
        image_size: Height and width of what the model sees, in pixels.
        resize_size: Height and width that images are brought to before the crop, in
            pixels; None: in the paper's ratio. See `Preprocessing`.
        images_per_client: How many images a client has; the last one may have fewer.
        seed: Which partition; 0 <= seed < 2^63. The paper's is not published.
        clients_csv: A partition as `data/partition_sop.py` writes it; None: the one
            that it writes for the same images_per_client and seed.

    Returns:
        The data set. Stored images are references to records, and labels are
        `class_id` - 1: 0..n-1 in training, from n on in the test.

    Raises:
        InvalidInputError: If an argument is out of range, the data is not there or
            damaged, or clients_csv does not fit it. The message names file and line.
    """
    partitions.check_seed(seed)
    preprocessing = Preprocessing(
        image_size, resize_size, records.read_image(tfds_records.IMAGE_FEATURE)
    )
    place = find(data_dir)
    prepared = tfds_records.prepare(place)
    index, sizes = tfds_records.index_of(prepared.builder)
    num_train, num_test = sizes.values()
    train = prepared.train
    if train is None:
        train = tfds_records.infer_train_listing(prepared.builder, index, num_train)
    train_rows = tfds_records.find_records(
        prepared.builder, index, 0, num_train, train, "train"
    )
    if prepared.test is not None:
        tfds_records.find_records(
            prepared.builder, index, num_train, num_test, prepared.test, "test"
        )

    if clients_csv is None:
        partition = make_partition(train, images_per_client, seed)
    else:
        partition = read_partition(clients_csv, train)
    # From rows of the listing to those of the index.
    partition = partition._replace(order=train_rows[partition.order])
    client_data = records.RecordClientData(
        index, partition.client_ids, partition.examples
    )
    return FederatedDataset(
        name=TITLE,
        num_classes=int(train.labels.max()) + 1,
        image_shape=(image_size, image_size, 3),
        train=client_data,
        test=HeldOut(
            records.references(index, np.arange(num_train, num_train + num_test)),
            num_test,
            len(np.unique(index.records["label"][num_train:])),
        ),
        test_is_unseen=True,
        preprocessing=preprocessing,
        pooled=lambda: records.references(index, np.arange(num_train)),
        note=_note(train, num_test),
        # The index has the test images too.
        contents=client_data.contents,
    )


def _note(train: Listing, num_test: int) -> str:
    num_train, num_classes = len(train.labels), len(np.unique(train.labels))
    original = (NUM_TRAIN_IMAGES, NUM_TRAIN_CLASSES, NUM_TEST_IMAGES)
    note = f"{num_train:,} training images"
    if (num_train, num_classes, num_test) != original:
        note += (
            f"; not the original, which has {NUM_TRAIN_IMAGES:,} of "
            f"{NUM_TRAIN_CLASSES:,} classes and {NUM_TEST_IMAGES:,} test images"
        )
    return note
