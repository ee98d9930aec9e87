"""The page of the toy paper: a line for each finished run."""


def write_table(key, table, results_dir, num_seeds, command):
    """Writes toy.md."""
    done = sorted(path.parts[-3] for path in results_dir.glob("*/*/done.json"))
    text = "\n".join([f"# {table.title}", *done])
    (results_dir / "toy.md").write_text(text)
    return text
