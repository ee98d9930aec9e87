"""Flags that do not parse, are out of range or do not go together, of every program."""

import pytest

from tests.faults import harness, programs
from tests.faults.arrangements import write
from tests.faults.harness import Case

# Of every program.
ANY = [
    case
    for program in programs.PROGRAMS
    if program not in ("train_photographs", "rf_softmax_labels", "partial_fc_faces")
    for case in (
        Case("an_unknown_flag", program, ["--no_such_flag=1"], says=["no_such_flag"]),
        Case(
            "a_flagfile_that_is_not_there",
            program,
            ["--flagfile=/no/such.flags"],
            says=["/no/such.flags"],
        ),
        Case(
            "a_flagfile_not_utf8",
            program,
            ["--flagfile=x.flags"],
            arrange=write("x.flags", b"--seed=\xff\xfe\n"),
            says=["--flagfile", "UTF-8"],
        ),
        Case(
            "a_flagfile_that_is_a_folder",
            program,
            ["--flagfile=data_of_it"],
            arrange=lambda place: (place.root / "data_of_it").mkdir(),
            says=["data_of_it"],
        ),
        Case(
            "a_flagfile_that_names_itself",
            program,
            ["--flagfile=x.flags", "--no_such_flag"],
            arrange=write("x.flags", "--flagfile=x.flags\n"),
            says=[("x.flags", "no_such_flag")],
        ),
        *(
            []
            if program == "run_table"  # It takes arguments.
            else [Case("a_stray_word", program, ["stray"], says=["'stray'"])]
        ),
    )
]

# Integers: below their range, above it, and no integers. Program: flags.
_COMMON = ("seed", "rounds", "batch_size", "embedding_dim", "rounds_per_evaluation")
INTEGERS = {
    "train": (
        *_COMMON,
        "clients_per_round",
        "image_size",
        "num_classes",
        "num_negatives",
        "rounds_per_checkpoint",
        "warm_start_epochs",
        "clients_per_gpu",
        "num_gpus",
        "spreadout_neighbors",
    ),
    "rf_softmax": (
        *_COMMON,
        "leaf_size",
        "num_frequencies",
        "num_negatives",
        "num_steps",
        "num_units",
        "rounds_per_checkpoint",
        "steps_per_round",
        "validation_words",
    ),
    "partial_fc": (
        *_COMMON,
        "num_classes",
        "num_devices",
        "num_strata",
        "rounds_per_checkpoint",
        "steps_per_round",
    ),
    "leap": (
        *_COMMON,
        "clusters_per_batch",
        "clusters_per_class",
        "epochs_per_refresh",
        "examples_per_cluster",
        "num_train",
        "rounds_per_checkpoint",
        "steps_per_round",
    ),
    "moco": (
        "seed",
        "epochs",
        "batch_size",
        "queue_size",
        "num_clusters",
        "num_train",
        "image_size",
        "epochs_per_evaluation",
        "epochs_per_checkpoint",
    ),
    "sampler_quality": ("num_draws",),
}

WRONG = [
    Case(f"{flag}={value}", program, [f"--{flag}={value}"], says=[f"--{flag}={value}"])
    for program, names in INTEGERS.items()
    for flag in names
    for value in ("-1", "1.5")
]

# Such numbers fit no integer of a library: a line, not a traceback.
HUGE = [
    Case(
        f"{flag}_of_20_digits",
        program,
        [f"--{flag}={'9' * 20}"],
        # Of the flag, or of the library's argument.
        says=[f"{flag}="],
        limits={"AS": 24 * 2**30},
    )
    for program, names in {
        "train": ("batch_size", "num_negatives", "num_classes", "clients_per_round"),
        "rf_softmax": ("batch_size", "num_negatives", "num_steps", "num_frequencies"),
        "partial_fc": ("batch_size", "num_classes", "num_strata", "embedding_dim"),
        "leap": ("batch_size", "clusters_per_class", "embedding_dim", "num_train"),
        "moco": ("batch_size", "queue_size", "num_clusters", "num_train"),
    }.items()
    for flag in names
] + [
    Case(f"seed={2**31 + 5}", p, [f"--seed={2**31 + 5}"], says=["--seed="])
    for p in programs.TRAINING
]

TOGETHER = [
    Case(label, program, flags, says=says)
    for program, label, flags, says in (
        ("train", "a_cluster_without_a_port", ["--cluster=ray://a"], ["--cluster"]),
        ("train", "no_cluster", ["--actors=2"], ["--actors=2", "--cluster"]),
        (
            "train",
            "a_cluster_and_in_process",
            ["--cluster=local", "--runtime=in_process"],
            ["--cluster=local"],
        ),
        ("train", "gpus_that_are_not_there", ["--num_gpus=99"], ["--num_gpus=99"]),
        ("train", "all_negatives", ["--num_negatives=40"], ["--num_negatives=40"]),
        (
            "train",
            "more_clients",
            ["--clients_per_round=99"],
            ["--clients_per_round=99"],
        ),
        ("train", "photographs", ["--dataset=tiny_imagenet"], ["--num_classes"]),
        ("compare", "an_unknown_method", ["--methods=fedss,best"], ["--methods"]),
        ("compare", "no_method", ["--methods="], ["--methods"]),
        ("compare", "a_method_twice", ["--methods=fedss,"], ["--methods"]),
        ("rf_softmax", "too_many_texts", ["--batch_size=9999"], ["--batch_size=9999"]),
        ("partial_fc", "more_strata", ["--num_strata=91"], ["--num_strata=91"]),
        ("partial_fc", "more_devices", ["--num_devices=9"], ["--num_devices=9"]),
        ("leap", "drops_backwards", ["--learning_rate_drops=9,5"], ["9,5"]),
        (
            "leap",
            "drops_of_words",
            ["--learning_rate_drops=a"],
            ["--learning_rate_drops"],
        ),
        ("leap", "more_images", ["--num_train=61"], ["num_train=61"]),
        ("moco", "a_small_queue", ["--queue_size=7"], ["--queue_size=7"]),
        ("moco", "more_clusters", ["--num_clusters=21"], ["--num_clusters=21"]),
        ("moco", "a_large_network", ["--backbone=resnet50"], ["--image_size"]),
        ("sampler_quality", "no_output", [], ["--output_dir"]),
        ("describe", "no_png", ["--output=x.txt"], ["--output=x.txt"]),
    )
]


@harness.params([*ANY, *WRONG])
def test_a_wrong_flag_is_named(case, place):
    harness.try_case(case, place)


@harness.params([*HUGE, *TOGETHER])
def test_flags_that_cannot_be_are_named(case, place):
    harness.try_case(case, place)


@pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
def test_help_is_no_error(program, place):
    module = programs.PROGRAMS[program].module
    outcome = place.server.run(module, "--help", cwd=place.root)
    assert outcome.code == 0 and outcome.errors == ""
    assert f"./run.sh {programs.command(program)}" in outcome.output
    assert list(place.root.iterdir()) == []
