"""The tables of the toy paper: FedSS on a few glyphs."""

from experiments.common import results as results_lib
from experiments.common.cells import Cell, Metric, table

_PAGE = dict(
    kind=results_lib.RunKind("toy", lambda flags: flags["method"]),
    metrics=(Metric("top1", "top-1 %"),),
)
_COMMON = dict(
    dataset="glyphs:num_classes=40",
    clients_per_round=2,
    warm_start_epochs=0,
    rounds_per_evaluation=2,
    rounds_per_checkpoint=1,
)


def _cell(name, **own):
    return Cell(name, {**_COMMON, **own}, name)


TABLES = {
    ("1", "mini"): table(
        "Two cells",
        [
            _cell("glyphs_fedss_m5", method="fedss", num_negatives=5, rounds=3),
            # More than there are classes.
            _cell("glyphs_neg_only_m41", method="neg_only", num_negatives=41, rounds=3),
        ],
        "toy",
        seeds=(0,),
        **_PAGE,
    ),
    ("long", "mini"): table(
        "A long run, and one of 40 rounds",
        [
            _cell("long", num_negatives=5, rounds=100_000, runtime="native"),
            _cell("forty", num_negatives=5, rounds=40),
        ],
        "toy_long",
        seeds=(0,),
        **_PAGE,
    ),
}
