"""MkDocs hook: makes a site of the whole repository, each page at its own path.

A link such as ../experiments/fedss/README.md then leads to the same page on the site
and on the code host. What pages link to, source files too, is copied with them.
"""

import pathlib
import re
from collections.abc import Iterator

import griffe
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "data/*.md", "experiments/**/*.md")
FILES = ("docs/site/*.css", "docs/site/*.js", "tff_fedss/**/*.py")
TUTORIALS = ROOT / ".venv-docs/tutorials"  # Written by docs/site/tutorial.py.
REFERENCE = pathlib.Path("docs/api")
# A row of its README.md: a room of tff_fedss, what is there, and modules.
ROOM = re.compile(r"^\| \[(\w+)\]\(\S+\) \| (.+) \| (.+) \|$", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#:\s]+)")


def on_files(files: Files, config) -> Files:
    """Replaces the files of docs/ by those of the repository, and fills the menu."""
    paths = {p.relative_to(ROOT): p for g in (*PAGES, *FILES) for p in ROOT.glob(g)}
    for path in TUTORIALS.glob("*/**/*.*"):  # NAME/NAME.md and what it shows
        below = path.relative_to(TUTORIALS).parts[1:]
        paths[pathlib.Path("docs/tutorials", *below)] = path
    for page in [path for path in paths.values() if path.suffix == ".md"]:
        for _, link in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if target.is_file() and target.is_relative_to(ROOT):
                paths.setdefault(target.relative_to(ROOT), target)
    theme = [file for file in files if file.src_dir != config.docs_dir]
    rooms = dict(_rooms())
    pages = sorted(p for p in [*paths, *rooms] if p.suffix == ".md")
    config.nav = list(_menu(config.nav, pages))
    return Files(
        theme
        + [
            File.generated(config, path.as_posix(), abs_src_path=str(source))
            for path, source in sorted(paths.items())
        ]
        + [
            File.generated(config, path.as_posix(), content=text)
            for path, text in rooms.items()
        ]
    )


def _rooms() -> Iterator[tuple[pathlib.Path, str]]:
    """Yields the pages of the reference: each has the docstrings of some modules."""
    readme = (ROOT / REFERENCE / "README.md").read_text(encoding="utf-8")
    for room, what, modules in ROOM.findall(readme):
        parts = [f"# {what[0].upper()}{what[1:]}"]
        for module in modules.replace("`", "").split():
            parts.append(f"## tff_fedss.{module}\n\n::: tff_fedss.{module}")
        yield REFERENCE / f"{room}.md", "\n\n".join(parts)


def _menu(entries: list, pages: list[pathlib.Path]) -> Iterator:
    """Fills in, for `FOLDER/*` and `FOLDER/**`, the pages that no entry names."""
    named = re.findall(r"'([^']+\.md)'", str(entries))
    left = [page for page in pages if page.as_posix() not in named]
    for entry in entries:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            is_page = isinstance(below, str)
            yield entry if is_page else {title: list(_menu(below, left))}
        elif "*" in entry:
            yield from _below(pathlib.Path(entry).parent, left, entry.endswith("**"))
        else:
            yield entry


def _below(folder: pathlib.Path, pages: list, deep: bool) -> Iterator:
    """Lists the pages in a folder; if deep, also its folders, as sections."""
    inside = [page for page in pages if page.is_relative_to(folder)]
    direct = [page for page in inside if page.parent == folder]
    others = sorted(set(inside) - set(direct)) if deep else []
    yield from (page.as_posix() for page in sorted(direct, key=_readme_first))
    for name in dict.fromkeys(page.relative_to(folder).parts[0] for page in others):
        below = list(_below(folder / name, pages, deep))
        if len(below) > 1:
            title, _, _ = (ROOT / below[0]).read_text(encoding="utf-8").partition("\n")
            yield {title.removeprefix("# "): below}
        else:
            yield from below


def _readme_first(page: pathlib.Path) -> tuple[bool, pathlib.Path]:
    return page.name != "README.md", page


def on_page_markdown(markdown: str, page, **_) -> str:
    """Leads links to rooms, folders and tutorials to their page or first file."""
    if page.file.src_uri == f"{REFERENCE}/README.md":
        markdown = ROOM.sub(r"| [\1](\1.md) | \2 | \3 |", markdown)
    here = ROOT / pathlib.Path(page.file.src_uri).parent

    def of_site(link: re.Match) -> str:
        target = here / link[2]
        for name in ("README.md", "__init__.py"):
            if (target / name).is_file():
                return f"{link[1]}{link[2].rstrip('/')}/{name}"
        is_tutorial = target.parent.name == "tutorials" and target.suffix == ".py"
        return link[1] + link[2][:-3] + ".md" if is_tutorial else link[0]

    return LINK.sub(of_site, markdown)


def on_page_content(html: str, page, **_) -> str:
    """Links the source files that the reference names; keeps `1 ± 2` on one line."""
    html = html.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    up = "../" * page.file.src_uri.count("/")
    return re.sub(
        r"(Source code in )<code>(tff_fedss/[\w/]+\.py)</code>",
        rf'\1<a href="{up}\2"><code>\2</code></a>',
        html,
    )


class Offered(griffe.Extension):
    """Griffe extension: puts the imports of an __init__.py into the reference.

    What a package's first file imports is what the package offers.
    """

    def on_members(self, *, obj, **_) -> None:
        """Marks the names of this project that an __init__.py imports from modules."""
        if obj.is_module and obj.is_init_module and obj.exports is None:
            obj.exports = [
                name
                for name, member in obj.members.items()
                if member.is_alias and member.target_path.startswith(obj.path + ".")
            ]
