"""Imports go one way, those within functions and for type checkers included."""

import ast
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# From the data to the programs; what stands later is not imported.
LAYERS = ("datasets", "tasks", "algorithms", "training")
# Of the data sets, what any of them may import.
SHARED = ("bijection", "fingerprint", "formats", "sources", "splits")
PAPERS = ("fedss", "leap", "moco", "partial_fc", "rf_softmax")


def _modules(*tops):
    """The path of every module, by its name."""
    modules = {}
    for top in tops:
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            modules[".".join(parts)] = path
    return modules


def _names(nodes, modules):
    """The names of what statements of a module import, of these modules and others."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute here"
            # What comes from a package may be a module, or something in __init__.py.
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in below)


def _imported(text, modules):
    """The names of those modules that a module's text imports anywhere."""
    return {*_names(ast.walk(ast.parse(text)), modules)} & {*modules}


@pytest.fixture(scope="module")
def imports():
    modules = _modules("tff_fedss", "experiments", "data", "examples")
    return {
        name: _imported(path.read_text(encoding="utf-8"), modules) - {name}
        for name, path in modules.items()
    }


def _within(name, *packages):
    return any(name == p or name.startswith(f"{p}.") for p in packages)


def _arrows(imports, from_, to):
    """The imports from some packages to others, for a message."""
    return [
        f"{name} imports {other}"
        for name, others in sorted(imports.items())
        for other in sorted(others)
        if _within(name, *from_) and _within(other, *to)
    ]


def test_all_kinds_of_imports_are_seen():
    modules = {"a", "a.b", "a.c", "a.d", "a.e"}
    text = (
        "import a.b\nfrom a import c, value\ndef f():\n  from a.d import x\n"
        "if TYPE_CHECKING:\n  import a.e, os\n"
    )
    assert _imported(text, modules) == modules


def test_no_circle(imports):
    assert len(imports) > 150
    list(graphlib.TopologicalSorter(imports).static_order())  # CycleError names it.


# A package, and what it does not import.
BARRED = [
    ("tff_fedss", ["experiments", "data", "examples", "tests"]),
    ("experiments", ["data", "examples", "tests"]),
    *(
        (f"tff_fedss.{layer}", [f"tff_fedss.{later}" for later in LAYERS[i + 1 :]])
        for i, layer in enumerate(LAYERS)
    ),
    *(
        (f"experiments.{name}", [f"experiments.{x}" for x in PAPERS if x != name])
        for name in ("common", *PAPERS)
    ),
]


@pytest.mark.parametrize("package, others", BARRED)
def test_imports_go_one_way(imports, package, others):
    assert any(_within(name, package) for name in imports)
    assert not _arrows(imports, [package], others)


def test_losses_and_samplers_import_each_other_only(imports):
    ours = ("tff_fedss.losses", "tff_fedss.samplers")
    for name, others in imports.items():
        if _within(name, *ours):
            assert all(_within(other, *ours) for other in others), name


def test_what_federated_data_are_made_of_knows_no_source(imports):
    federated = "tff_fedss.datasets.federated"
    shared = [f"tff_fedss.datasets.{name}" for name in SHARED]
    others = [
        name
        for name in imports
        if _within(name, "tff_fedss.datasets") and not _within(name, federated, *shared)
    ]
    assert len(others) > 10
    others.remove("tff_fedss.datasets")
    assert not _arrows(imports, [federated, *shared], others)


# What takes much time or memory and serves few runs.
HEAVY = {"matplotlib", "numba", "onnx", "onnxruntime", "ray", "sklearn", "tf2onnx"}


@pytest.mark.parametrize("module", ["tff_fedss.training", "experiments.fedss.train"])
def test_what_few_runs_use_is_imported_when_it_is_used(module):
    modules = _modules("tff_fedss", "experiments")
    reached, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            # A package is imported before what is in it.
            waiting += [name.rpartition(".")[0]] if "." in name else []
            if name in modules:
                text = modules[name].read_text(encoding="utf-8")
                waiting += _names(ast.parse(text).body, modules)
    assert len(reached) > 50
    assert not reached & HEAVY
