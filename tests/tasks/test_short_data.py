"""Data that are too few for a task: a line, and not a division by zero."""

import numpy as np
import pytest

from tff_fedss import tasks
from tff_fedss.datasets.central import extreme, penn_treebank
from tff_fedss.errors import InvalidInputError

OPTIONS = {"embedding_dim": 2, "logit_scale": 1.0, "batch_size": 4, "seed": 0}


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_text_that_is_too_short(part):
    long, short = (np.zeros(count, np.int32) for count in (200, 20))
    texts = {"train": long, "valid": long, "test": long, part: short}
    name = {"train": "training", "valid": "validation"}[part]
    with pytest.raises(InvalidInputError, match=f"than the 20 words of the {name}"):
        tasks.LanguageModel(
            penn_treebank.PennTreebank(**texts, words=["a"]),
            num_steps=5,
            num_units=2,
            **OPTIONS,
        )


@pytest.mark.parametrize("part", ["training", "test"])
def test_rows_without_labels(part):
    def rows(num_labels):
        return extreme.SparseRows(
            np.zeros(1, np.int32),
            np.ones(1, np.float32),
            np.array([0, 1]),
            np.zeros(num_labels, np.int32),
            np.array([0, num_labels]),
        )

    data = extreme.ExtremeDataset(
        rows(int(part == "test")), rows(int(part != "test")), 2, 2
    )
    with pytest.raises(InvalidInputError, match=f"no {part} row has a label"):
        tasks.ExtremeClassification(data, **OPTIONS)
