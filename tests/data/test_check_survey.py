"""Reading in processes gives what reading in one gives, and outlives what kills a process."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

from nearsight.data import open_data
from nearsight.data.survey import DIED, survey_images

MODULE = """
import os, time
import numpy as np
from PIL import Image
from nearsight.data.samples import Split

class Deadly(Split):
    labels = np.zeros(100, dtype=np.int64)
    def name(self, index): return f"image {index}"
    def content(self, index): return bytes([index])
    def read(self, index, enough=None):
        if index in (20, 21, 70):
            os._exit(9)
        return Image.new("RGB", (5, index + 1))

class Poison(Deadly):
    def __reduce__(self): return os._exit, (9,)

class Slow(Deadly):
    labels = np.zeros(100_000, dtype=np.int64)
    def content(self, index): return str(index).encode()
    def read(self, index, enough=None):
        time.sleep(0.02)
        return Image.new("RGB", (5, 5))

class Faulty(Deadly):
    def read(self, index, enough=None): raise RuntimeError("no memory card")
"""


@pytest.fixture
def bad_splits(tmp_path, monkeypatch):
    """Splits that worker processes can import."""
    (tmp_path / "bad_splits_for_survey.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import bad_splits_for_survey

    yield bad_splits_for_survey
    del sys.modules["bad_splits_for_survey"]


def test_two_processes_see_what_one_sees(tmp_path):
    random = np.random.default_rng(0)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for number in range(40):
        pixels = random.integers(0, 256, (9 + number, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a" / f"{number}.png")
    (tmp_path / "b" / "bad.png").write_bytes(b"bad")
    splits = open_data(tmp_path).splits()
    one, two = survey_images(splits, workers=0), survey_images(splits, workers=2)
    assert one.entries == two.entries and len(one.entries) == 40
    assert one.digests == two.digests and len(set(one.digests)) == 40
    assert one.sizes.tolist() == two.sizes.tolist() == [[9 + number, 20] for number in range(40)]
    assert (one.thumbnails == two.thumbnails).all()
    assert one.unreadable == two.unreadable == {("train", 40): "it holds no image, or one in an unknown format"}


def test_images_that_kill_their_process_are_reported_and_the_others_read(bad_splits):
    survey = survey_images({"train": bad_splits.Deadly()}, workers=2)
    assert survey.unreadable == {("train", index): DIED for index in (20, 21, 70)}
    assert [index for _, index in survey.entries] == [i for i in range(100) if i not in (20, 21, 70)]
    assert survey.sizes[:, 0].tolist() == [i + 1 for i in range(100) if i not in (20, 21, 70)]


@pytest.mark.slow
def test_a_script_without_a_guard_is_run_once(tmp_path):
    """Processes that are started afresh import the script that started them, unless they are kept from it."""
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "labels.csv").write_text("file,label\n0.png,a\n1.png,b\n2.png,a\n")
    script = tmp_path / "script.py"
    lines = ("import nearsight", "print('begins')", "print(nearsight.check_data('labels.csv', workers=2).images)")
    script.write_text("\n".join(lines))
    ran = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.splitlines() == ["begins", "{'train': 3}"], ran.stderr


def test_processes_that_cannot_start_are_reported_in_a_sentence(bad_splits):
    with pytest.raises(OSError, match=r"^Worker processes end before they have read anything; read with 0 workers\.$"):
        survey_images({"train": bad_splits.Poison()}, workers=1)


def test_any_error_of_a_source_is_the_reason_of_an_unreadable_image(bad_splits):
    survey = survey_images({"val": bad_splits.Faulty()}, workers=0)
    assert survey.unreadable[("val", 99)] == "RuntimeError: no memory card"
    assert survey.thumbnails.shape == (0, 16, 16, 3)


def test_a_negative_number_of_workers_is_refused():
    with pytest.raises(ValueError, match=r"^-1 workers won't do; give 0 to read images in one process, or up to 256"):
        survey_images({}, workers=-1)


@pytest.mark.posix
@pytest.mark.parametrize("kill", ["SIGINT", "SIGKILL"])
def test_worker_processes_end_soon_after_the_main_process(bad_splits, tmp_path, kill):
    script = tmp_path / "interrupted.py"
    script.write_text(
        textwrap.dedent(
            """
            import signal
            from bad_splits_for_survey import Slow
            from nearsight.data.survey import look_in_processes
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
            if __name__ == "__main__":
                chunks = [[("train", index)] for index in range(100_000)]
                try:
                    for _ in look_in_processes({"train": Slow()}, chunks, 2):
                        print("reading", flush=True)
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "reading\n"
    if kill == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
    else:
        process.kill()
    output, errors = process.communicate(timeout=120)  # returns when no process has the pipes open any more
    if kill == "SIGINT":
        assert output.splitlines()[-1] == "interrupted"
        assert errors == ""
