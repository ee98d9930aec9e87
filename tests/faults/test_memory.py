"""Sizes that no machine holds: refused with their sum, before anything is done."""

from tests.faults import harness
from tests.faults.harness import Case

# Far above this machine's memory; a process that tries it anyway is stopped early.
_LIMIT = {"AS": 24 * 2**30}

ABSURD = [
    Case(
        label,
        program,
        flags,
        says=[("memory", "GiB", "TiB", "GB", "at most"), *says],
        limits=_LIMIT,
    )
    for program, label, flags, says in (
        ("train", "embedding_dim_1e9", ["--embedding_dim=1000000000"], []),
        ("train", "image_size_100000", ["--image_size=100000"], []),
        (
            "train",
            "a_million_classes_wide",
            ["--dataset=glyphs:num_classes=1000000", "--embedding_dim=1000000"],
            [],
        ),
        ("train", "n_1e9", ["--dataset=glyphs:num_classes=1000000000"], []),
        ("compare", "embedding_dim_1e9", ["--embedding_dim=1000000000"], []),
        ("train_photographs", "image_size_100000", ["--image_size=100000"], []),
        ("rf_softmax", "embedding_dim_1e9", ["--embedding_dim=1000000000"], []),
        ("rf_softmax", "num_units_1e9", ["--num_units=1000000000"], []),
        ("rf_softmax", "num_frequencies_1e12", ["--num_frequencies=1000000000000"], []),
        ("rf_softmax", "num_negatives_1e10", ["--num_negatives=10000000000"], []),
        (
            "partial_fc",
            "n_1e9",
            ["--num_classes=1000000000", "--embedding_dim=512"],
            [],
        ),
        ("partial_fc", "n_1e12", ["--num_classes=1000000000000"], []),
        ("partial_fc", "embedding_dim_1e9", ["--embedding_dim=1000000000"], []),
        ("partial_fc_faces", "image_size_100000", ["--image_size=100000"], []),
        ("leap", "embedding_dim_1e10", ["--embedding_dim=10000000000"], []),
        ("moco", "queue_size_1e10", ["--queue_size=10000000000"], []),
        ("moco", "image_size_100000", ["--image_size=100000"], []),
        ("describe", "glyphs_1e9", ["--dataset=glyphs:num_classes=1000000000"], []),
    )
]


@harness.params(ABSURD)
def test_an_absurd_size_is_refused(case, place):
    harness.try_case(case, place)
