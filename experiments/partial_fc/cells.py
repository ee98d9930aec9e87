"""The cells of Partial FC.

    ./run.sh table partial_fc/omniglot --data_dir=OMNIGLOT
    ./run.sh table partial_fc/rates --data_dir=OMNIGLOT      # on validation drawers
    ./run.sh table partial_fc/own_rates --data_dir=OMNIGLOT  # with what those say
    ./run.sh table partial_fc/ten_million --cells='*'
    ./run.sh table partial_fc/faces --data_dir=FACES

`omniglot` tests whether the positives must be kept: all 1,623 characters, PPRN against
sampling at random; 20 minutes on 2 cores for three seeds; top-1 53.1 % (r = 1), 46.9 %
(PPRN, 0.5), 27.8 % (PPRN, 0.1), 22.4 and 0.1 % at random: docs/results/partial_fc.
`own_rates`: the same, each with the best learning rate on other drawers. `ten_million`:
W and its momentum are 5.1 GB; 8 GiB of memory. `faces` has not been run: no face images
were available.
"""

from experiments.common import results as results_lib
from experiments.common.cells import Cell, Metric, table


def _name(sampling: str, sample_rate: float) -> str:
    return "full" if sample_rate == 1 else f"{sampling}_{sample_rate:g}"


_KIND = results_lib.RunKind(
    paper="partial_fc",
    run_name=lambda flags: _name(flags["sampling"], float(flags["sample_rate"])),
    cell_flags=frozenset({"sampling", "sample_rate"}),
    has_own_data=lambda flags: flags.get("dataset") == "generated",
)
_CA_PCC = Metric("ca_pcc", "CA_pcc", ".3f", 1, difference_scale=0)
# Differences are computed for metrics of the embedding.
_METRICS = (
    Metric("tar_at_far", "TAR@FAR=0.001", ".3f", 1),
    Metric("pair_accuracy", "pair accuracy", ".3f", 1),
    Metric("map_at_r", "MAP@R", ".3f", 1),
    Metric("top1", "top-1", ".3f", 1),
    Metric("lfw_accuracy", "LFW accuracy", ".3f", 1),
    Metric("lfw_std", "LFW, std of folds", ".3f", 1, difference_scale=0),
    _CA_PCC,
    Metric("trained_share", "examples with a target", ".3f", 1, difference_scale=0),
    Metric("classes_per_step", "classes in a step", ",.0f", 1, difference_scale=0),
    Metric("steps", "steps", ",.0f", 1, False, 0),
)
_SAMPLED = ("all_random_0.1", "all_random_0.5", "pprn_0.1", "pprn_0.5")
_PAGE = dict(
    kind=_KIND,
    metrics=_METRICS,
    # The cost of sampling compared with r = 1, and the gain of keeping the positives.
    pairs=(
        *((name, "full") for name in _SAMPLED),
        ("pprn_0.1", "all_random_0.1"),
        ("pprn_0.5", "all_random_0.5"),
    ),
    x="steps",
    curves=(_METRICS[0], _CA_PCC, Metric("loss", "training loss", scale=1)),
)
_OMNIGLOT = dict(
    dataset="omniglot",
    rounds=20,
    steps_per_round=100,
    rounds_per_evaluation=2,
    num_strata=8,
    # The best of a search at r = 1.
    learning_rate=0.001,
)
# The best MAP@R of `rates`, by sampling and r.
_OWN_RATES = {
    ("pprn", 1.0): 0.003,
    ("pprn", 0.5): 0.003,
    ("pprn", 0.1): 0.001,
    ("all_random", 0.5): 0.001,
    ("all_random", 0.1): 0.0003,
}


def _omniglot_cell(sampling: str, sample_rate: float, learning_rate: float) -> Cell:
    name = _name(sampling, sample_rate)
    title, own = f"{sampling}, r = {sample_rate:g}", {"sampling": sampling}
    if name == "full":
        title, own = "full softmax", {}
    own |= {"sample_rate": sample_rate, "learning_rate": learning_rate}
    title += f", learning rate {learning_rate:g}"
    return Cell(name, {**_OMNIGLOT, **own}, title, row=name)


TABLES = {
    ("omniglot", "mini"): table(
        "All 1,623 characters of Omniglot",
        [_omniglot_cell(*key, _OMNIGLOT["learning_rate"]) for key in _OWN_RATES],
        "partial_fc/omniglot",
        **_PAGE,
    ),
    ("own_rates", "mini"): table(
        "All 1,623 characters of Omniglot, each r with its own learning rate",
        [_omniglot_cell(*key, rate) for key, rate in _OWN_RATES.items()],
        "partial_fc/own_rates",
        **_PAGE,
    ),
    ("rates", "mini"): table(
        "The learning rate by r, on drawers of Omniglot that are not the test's",
        [
            Cell(
                f"{sampling}_{sample_rate:g}_{rate:g}",
                dict(
                    _OMNIGLOT,
                    sampling=sampling,
                    sample_rate=sample_rate,
                    learning_rate=rate,
                    evaluate_on="validation",
                ),
                f"{sampling}, r = {sample_rate:g}, learning rate {rate:g}",
            )
            for sampling, sample_rate in _OWN_RATES
            for rate in (0.0003, 0.001, 0.003, 0.01)
        ],
        "partial_fc/rates",
        seeds=(0,),
        kind=_KIND,
        metrics=(Metric("map_at_r", "MAP@R (%)"),),
        has_late=True,
    ),
    ("ten_million", "mini"): table(
        "Ten million generated identities, d = 64",
        [
            Cell(
                "pprn_0.1",
                dict(
                    dataset="generated",
                    num_classes=10_000_000,
                    sample_rate=0.1,
                    num_strata=16,
                    rounds=4,
                    steps_per_round=25,
                    rounds_per_evaluation=2,
                    rounds_per_checkpoint=2,
                ),
                "PPRN, r = 0.1",
            )
        ],
        "partial_fc/ten_million",
        seeds=(0,),
        **_PAGE,
    ),
    ("faces", "paper"): table(
        "Aligned faces in a folder for each identity, network and rate ours",
        [
            Cell(
                "pprn_0.1",
                dict(
                    dataset="faces",
                    model="mobilenet_v3_large",
                    image_size=112,
                    embedding_dim=512,
                    margin="arcface",
                    margin_size=0.5,
                    weight_decay=0.0005,
                    flip=True,
                    logit_scale=64.0,
                    sample_rate=0.1,
                    batch_size=512,
                    rounds=200,
                    steps_per_round=1000,
                ),
                "ArcFace, s = 64, d = 512, r = 0.1",
            )
        ],
        "partial_fc/faces",
        seeds=(0,),
        **_PAGE,
    ),
}
