"""What the documentation site has beside the pages under docs/: the reference, notebooks, and pages of the root.

MkDocs calls these functions (`hooks` in mkdocs.yml); `make site` builds the site.
"""

import ast
import html
import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Extension

ROOT = Path(__file__).parents[1]
# Pages of the root of the repository, and what they are called on the site.
OUTER = {"CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md", "README.md": "README.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
COLOUR = re.compile(r"\x1b\[[\d;]*m")  # of a terminal
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
PARTS = ("slots", "embed", "qkv", "attention", "gather", "depthwise", "sliding", "feedforward", "merge", "norm")
TASKS = ("tasks.base", "tasks.predictions", "runs.predictor", "embedding", "diagnosis", "serving")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    from mkdocs.structure.files import File

    outer = {name: file for file, name in OUTER.items() if name != "README.md"}
    made = {name: re.sub(r"\]\(docs/", "](", (ROOT / file).read_text()) for name, file in outer.items()} | reference()
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{notebook.name}.md"] = from_notebook(json.loads(notebook.read_text()))
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links to files that the site does not have become plain words."""
    folder = posixpath.dirname(page.file.src_uri)
    known = {file.src_uri for file in files}

    def follow(link: re.Match[str]) -> str:
        image, words, target = link.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return link[0]
        inside = posixpath.normpath(posixpath.join(folder, path))
        if f"{inside}.md" in known:  # a notebook, as a page
            return f"{image}[{words}]({path}.md)"
        if inside in known:
            return link[0]
        if inside.startswith("../") and inside.removeprefix("../") in OUTER:
            found = posixpath.relpath(OUTER[inside.removeprefix("../")], folder or ".")
            return f"{image}[{words}]({found}{'#' * bool(anchor)}{anchor})"
        if inside.startswith("../") or (ROOT / "docs" / inside).exists():
            return words  # a file of the repository
        return link[0]  # broken: MkDocs says so

    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [LINK.sub(follow, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, LINK.sub(follow, markdown[end:])])


def reference() -> dict[str, str]:
    """Pages of the reference, from docstrings: the verbs, parts, models and tasks."""
    tree = ast.parse((ROOT / "src/nearsight/__init__.py").read_text())
    homes: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOME":
            homes = ast.literal_eval(node.value)
    moved_to = {"open_data": "data.open", "localize": "retrofit.localize", "load_recipe": "config.files"}
    moved_to |= {"run_training": "training.loop", "probe": "explanation.probing.measure"}
    moved_to |= {"load_official": defined("load_official"), "probe": defined("probe"), "fold": defined("fold")}
    verbs = "# Verbs\n\nEach is a function of `nearsight`, and a command of the same name with the same options.\n\n"
    for name in sorted(homes, key=str.casefold):
        verbs += f"::: nearsight.{moved_to.get(name, homes[name])}.{name}\n\n"
    pages = {"reference/verbs.md": verbs}
    there = [name for name in PARTS if (ROOT / f"src/nearsight/parts/{name}.py").is_file()]
    for title, modules in (
        ("Parts", [f"parts.{name}" for name in there]),
        ("Models", ["models.spec", "models.backbone"]),
        ("Tasks and predictions", [name for name in TASKS]),
    ):
        text = f"# {title}\n\n" + "".join(f"::: nearsight.{name}\n\n" for name in modules)
        pages[f"reference/{title.split()[0].lower()}.md"] = text
    return pages


def defined(name: str) -> str:
    """The module that defines a function."""
    for file in sorted((ROOT / "src/nearsight").rglob("*.py")):
        if re.search(rf"^def {name}\(", file.read_text(), re.MULTILINE):
            inside = file.relative_to(ROOT / "src/nearsight").with_suffix("").as_posix()
            return inside.replace("/", ".")
    raise ValueError(f"No module defines {name}.")


def from_notebook(notebook: dict[str, Any]) -> str:
    """A notebook with its outputs as Markdown; figures are inside the page."""
    pieces = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            pieces.append(text)
            continue
        pieces.append(f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                content = "".join(data["image/png"]).replace("\n", "")
                pieces.append(f'<img alt="Output of the cell above" src="data:image/png;base64,{content}">')
            elif shown := COLOUR.sub("", "".join(output.get("text", data.get("text/plain", "")))).strip():
                pieces.append(f'<pre class="output"><code>{html.escape(shown)}</code></pre>')
    return "\n\n".join(pieces) + "\n"


class ExampleSections(Extension):
    """Lets an `Example:` of a docstring be shown as code, as an `Examples:` is."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rename the section of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


def on_config(config: Any) -> Any:
    """Read the code from here, wherever the command was typed, and list every page of results."""
    os.chdir(ROOT)
    results = next(group["Results"] for group in config.nav if "Results" in group)
    for file in sorted((ROOT / "docs" / "results").glob("*.md")):
        if file.name != "README.md" and not file.name.endswith(".head.md"):
            title = file.read_text().partition("\n")[0].removeprefix("# ").replace("`", "")
            results.append({title: f"results/{file.name}"})
    return config
