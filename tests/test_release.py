"""What a release consists of beside code: it names the same version, licence and Pythons everywhere."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

import nearsight

ROOT = Path(__file__).parents[1]
EXTRAS = ("gradio", "onnxruntime", "openvino", "ray", "datasets", "optuna", "starlette", "mkdocs", "pytorch_grad_cam")
# Commands that an extra is needed for, and which.
LACKING = {
    "app run": "app",
    "serve run": "serve",
    "export run": "deploy",
    "export run --format openvino": "openvino",
    "search digits --macs 10M": "search",
    "compare digits --models deit_nano --ray auto": "ray",
    "train hf:owner/name": "hub",
    "train t.parquet": "parquet",
    "embed digits --model deit_nano --limit 2 --out e.parquet": "parquet",
}
ONE_AFTER_ANOTHER = """
import sys
from nearsight.cli.shell import main
for words in sys.argv[1:]:
    sys.argv = ["nearsight", *words.split()]
    try:
        main()
    except SystemExit as end:
        print("left with", end.code, file=sys.stderr)
"""
PROJECT = (ROOT / "pyproject.toml").read_text()  # Python 3.10 has no reader of TOML


def test_the_citation_names_this_version_its_licence_and_the_five_papers() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == nearsight.__version__ and f'license = "{cited["license"]}"' in PROJECT
    titles = [paper["title"].casefold() for paper in cited["references"]]
    assert len(titles) == 5
    for page in ("localvit", "lightvit", "lit", "dwconv", "life"):  # as the papers' pages have them
        text = re.sub(r"[\s*]+", " ", (ROOT / "docs" / "papers" / f"{page}.md").read_text()).casefold()
        assert any(title in text for title in titles), page


WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))


def test_the_changelog_has_this_version_with_the_date_of_the_citation() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    day = yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]  # which YAML reads as a day
    assert headings[:2] == ["Unreleased", f"{nearsight.__version__} ({day})"]


@pytest.mark.parametrize("file", [*WORKFLOWS, *ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")], ids=lambda path: path.name)
def test_each_workflow_and_form_is_yaml_with_a_name(file: Path) -> None:
    assert yaml.safe_load(file.read_text())["name"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_a_commit_and_jobs_end(file: Path) -> None:
    """A tag can be moved to other code, which would run with the permissions of the job."""
    used = re.findall(r"uses: (.*)", file.read_text())
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in used)
    described = yaml.safe_load(file.read_text())
    assert described["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in described["jobs"].values())


def test_the_workflow_tries_every_python_that_the_package_names() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    tested = jobs["linux"]["strategy"]["matrix"]["python"]
    assert tested == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert f'requires-python = ">={tested[0]}"' in PROJECT
    assert jobs["install"]["strategy"]["matrix"]["python"] == [tested[0], tested[-1]]


def test_the_workflow_of_releases_refuses_a_tag_of_another_version(tmp_path: Path) -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]
    (step,) = (step for step in jobs["build"]["steps"] if step.get("name") == "The tag names the version")
    for file in ("src/nearsight/__init__.py", "CHANGELOG.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    for tag, code in ((f"v{nearsight.__version__}", 0), ("v9.9.9", 1)):
        environment = os.environ | {"TAG": tag}
        done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=False)
        assert done.returncode == code


def test_the_workflow_of_releases_adds_where_the_project_lives(tmp_path: Path) -> None:
    """What it types makes a project file with the addresses of the repository that it runs in; there is no password."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]
    steps = {step.get("name"): step for step in jobs["build"]["steps"]}
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    shell = {"cwd": tmp_path, "check": False, "capture_output": True}
    names = {"URL": "https://example.org/anna/nearsight", "TAG": "v1"}
    typed = ["bash", "-e", "-c", steps["The addresses of the repository that publishes"]["run"]]
    assert subprocess.run(typed, env=os.environ | names, **shell).returncode == 0  # type: ignore[call-overload]
    added = (tmp_path / "pyproject.toml").read_text().removeprefix(PROJECT)
    assert added.startswith("\n[project.urls]\n") and "[project.urls]" not in PROJECT
    assert 'Changelog = "https://example.org/anna/nearsight/blob/v1/CHANGELOG.md"' in added
    shown = (tmp_path / "README.md").read_text()
    assert re.findall(r"\]\((?!https://)", shown) == []
    assert re.findall(r"!\[[^\]]*\]\((?!https://example.org/anna/nearsight/raw/v1/docs/images/)", shown) == []
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["steps"][-1]["with"] == {"attestations": True}


def base_packages(folder: Path) -> None:
    """Link what the base install brings into a folder, and nothing of the extras."""
    names, found = ["nearsight"], set[str]()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system
        for line in package.requires or []:
            required, _, condition = line.partition(";")
            if "extra ==" not in condition:
                names.append(re.split(r"[^\w.-]", required.strip())[0])
        if name == "nearsight":
            continue
        for file in package.files or []:
            top = file.parts[0]
            origin = Path(str(package.locate_file(top)))
            if top not in ("..", "__pycache__") and origin.exists() and not (folder / top).exists():
                (folder / top).symlink_to(origin)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_wheel_and_sdist_work_with_nothing_but_the_base_install(tmp_path: Path) -> None:
    """Built, installed into an environment of its own, imported without any extra, and used to train."""
    for needed in ("build", "hatchling"):
        pytest.importorskip(needed)
    made = tmp_path / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    if importlib.util.find_spec("twine"):
        files = [str(file) for file in made.iterdir()]
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True, capture_output=True)
    (wheel,), (sdist,) = made.glob("*.whl"), made.glob("*.tar.gz")
    (tmp_path / "base").mkdir()
    base_packages(tmp_path / "base")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    place = tmp_path / "venv"
    venv.create(place, with_pip=True, symlinks=True)
    (site,) = place.glob("lib/python3*/site-packages")
    (site / "base.pth").write_text(f"{tmp_path / 'base'}\n")
    python, builder = place / "bin" / "python", importlib.metadata.distribution("hatchling").locate_file("")
    install = ["install", "--quiet", "--force-reinstall", "--no-deps", "--no-index", "--no-build-isolation"]
    alone = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": False}
    for archive in (sdist, wheel):
        if archive is sdist:  # which has to be built
            (site / "builder.pth").write_text(f"{builder}\n")
        done = subprocess.run([str(python), "-m", "pip", *install, str(archive)], **alone)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        (site / "builder.pth").unlink(missing_ok=True)
        code = (
            "import importlib.util as u, nearsight\n"
            "assert all(getattr(nearsight, name) is not None for name in nearsight.__all__)\n"
            f"print(*[name for name in {EXTRAS!r} if u.find_spec(name)])"
        )
        done = subprocess.run([str(python), "-c", code], **alone)  # type: ignore[call-overload]
        assert done.returncode == 0 and done.stdout.strip() == "", done.stdout + done.stderr
    words = ["train", "digits", "--epochs", "1", "--limit", "200", "--cpu", "--quiet", "--offline", "--out", "run"]
    done = subprocess.run([str(place / "bin" / "nearsight"), *words], **alone)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").is_file()
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    done = subprocess.run([str(python), "-c", ONE_AFTER_ANOTHER, *LACKING], **alone)  # type: ignore[call-overload]
    said = done.stderr.split("left with 1\n")
    assert done.returncode == 0 and len(said) == len(LACKING) + 1, done.stderr
    for extra, sentence in zip(LACKING.values(), said, strict=False):
        assert f"nearsight[{extra}]" in sentence and "Traceback" not in sentence
