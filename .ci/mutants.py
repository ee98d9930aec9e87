"""Mutates code at a sample of places and runs its tests, see PAGE."""

import ast
import os
import pathlib
import random
import re
import signal
import sys

import pytest
import tensorflow_federated  # noqa: F401  Once for all children: it takes long.
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

SAMPLE, SEED, SECONDS = 150, 43, 600
sys.dont_write_bytecode = True  # A mutant may be as old and as long as its file.
PAGE = pathlib.Path("docs/results/mutation_score.md").read_text(encoding="utf-8")
# Of the kinds FROM_TO: one TO for each FROM, the neighbour and the opposite of < and >.
PAIRS = """Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Div Mod_FloorDiv Pow_Mul Is_IsNot
BitOr_BitAnd BitAnd_BitOr RShift_LShift LShift_RShift Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE
LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt IsNot_Is USub_UAdd Delete_Invert Delete_Not"""
KINDS = {n: OperatorProvider()[n] for n in OperatorProvider() if "Variable" not in n}
KINDS = {n: k for n, k in KINDS.items() if n.partition("_")[2] in ["", *PAIRS.split()]}


def mutants(path: pathlib.Path) -> list[tuple]:
    """Lists (path, kind, number, line); none of errors, types and abstract methods."""
    text, spans, found = path.read_text(), [], []
    for n in ast.walk(ast.parse(text)):
        parts = [getattr(n, "returns", None), getattr(n, "annotation", None)]
        parts += [d for d in getattr(n, "decorator_list", ()) if "abs" in ast.dump(d)]
        parts += [n] if isinstance(n, ast.Raise) else []
        for p in filter(None, parts):
            spans.append(((p.lineno, p.col_offset), (p.end_lineno, p.end_col_offset)))
    nodes = list(ast_nodes(get_ast(text)))
    for name, kind in KINDS.items():
        places = [p for n in nodes for p, _ in kind().mutation_positions(n)]
        for number, (line, column) in enumerate(places):
            if not any(a <= (line, column + 1) <= b for a, b in spans):
                found.append((path, name, number, line))
    return found


rows = re.findall(r"^\| `(\S+)` \|.*\| `(.+)` \|$", PAGE, re.MULTILINE)
tests = {p: t for f, t in rows for p in sorted(pathlib.Path("tff_fedss").glob(f))}
of_file = {path: mutants(path) for path in tests}
total, draw = sum(map(len, of_file.values())), random.Random(SEED)
for all_of_it in of_file.values():
    share = max(3, round(SAMPLE * len(all_of_it) / total))
    for path, name, number, line in draw.sample(all_of_it, min(len(all_of_it), share)):
        text = path.read_text()
        path.write_text(mutate_code(text, KINDS[name](), number))
        if not (child := os.fork()):
            signal.alarm(SECONDS)
            os._exit(pytest.main(["-qxp", "no:cacheprovider", *tests[path].split()]))
        outcome = "killed" if os.waitpid(child, 0)[1] else "SURVIVED"
        path.write_text(text)
        print(outcome, path, line, name, number, flush=True)
