import pathlib
import re

README = pathlib.Path(__file__).parent.parent / "README.md"


def test_the_library_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert "top1" in capsys.readouterr().out


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert len(links) > 5
    for link in links:
        assert (README.parent / link).exists(), link
