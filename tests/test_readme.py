import pathlib
import re

README = pathlib.Path(__file__).parent.parent / "README.md"


def test_the_library_example_learns(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    (top1,) = re.findall(r"'top1': ([\d.]+)", capsys.readouterr().out)
    assert float(top1) > 10 / 500  # ten times chance


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert len(links) > 5
    for link in links:
        assert (README.parent / link).exists(), link
