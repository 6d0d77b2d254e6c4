"""Dependencies point one way: what stands further up never imports what stands below it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nearsight
from nearsight.parts.slots import REGISTERED, Part

ROOT = Path(nearsight.__file__).parent

# Each line may import what stands above it, and its own; names on one line are strangers to each other.
LAYERS = (
    ("arguments", "atomic", "network"),
    ("result",),
    ("catalogue", "interval", "lattice", "plots", "shipped"),
    ("timing",),
    ("ops",),
    ("parts",),
    ("models",),
    ("retrofit",),
    ("heads",),
    ("checkpoints",),
    ("factory",),
    ("reproduction",),
    ("console",),
    ("config",),
    ("data",),
    ("tasks",),
    ("runs",),
    ("features", "sharing", "diagnosis"),
    ("embedding",),
    ("training",),
    ("searching",),
    ("deployment",),
    ("robustness",),
    ("evaluation", "explanation", "label_issues"),
    ("prediction", "conversion", "calibration"),
    ("comparison",),
    ("benchmarking", "app"),
    ("serving",),
    ("cli",),
    ("__main__", "__init__"),
)


def imports(path: Path) -> Iterator[str]:
    """Modules and packages at the root that a file imports, also within functions; not those for types alone."""
    package = path.relative_to(ROOT).parts[:-1]
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            module = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            names = [name for name in module if name][:1] or [alias.name for alias in node.names]
            yield from names
        elif isinstance(node, ast.ImportFrom | ast.Import):
            whole = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not any(name.split(".")[0] == "nearsight" for name in whole), f"{path} imports by its own name"
        todo += ast.iter_child_nodes(node)


def test_imports_point_one_way() -> None:
    heights = {name: height for height, layer in enumerate(LAYERS) for name in layer}
    heights["__version__"] = -1
    wrong = set()
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT)
        own = relative.parts[0].removesuffix(".py")
        for other in imports(path):
            if other != own and heights[other] >= heights[own]:
                wrong.add(f"{relative} imports {other}")
    assert sorted(wrong) == []


def test_the_page_on_architecture_names_every_room() -> None:
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {name for layer in LAYERS for name in layer}
    assert rooms == {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    rooms -= {"__main__", "__init__"}
    assert [room for room in sorted(rooms) if not re.search(rf"`{room}(\.py)?`", page)] == []


# Where the parts of the papers are named: their files, the families' tables, what reads the releases, what the papers'
# own tables list, and LIFE's detector.
NAMED = ("parts/", "models/", "checkpoints/released/", "reproduction/", "explanation/probing/paper.py", "heads/detr.py")


def test_parts_of_the_papers_are_named_by_tables_and_readers_alone() -> None:
    ours = {name for name, part in REGISTERED.items() if issubclass(part, Part) and part.family != "hosts"}
    assert {"LocalityFfn", "BiGate", "DeformableMerge", "DepthWise", "Life"} <= ours
    wrong = set()
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT).as_posix()
        if not relative.startswith(NAMED):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            wrong |= {f"{relative} names {name}" for name in named & ours}
    assert sorted(wrong) == []
