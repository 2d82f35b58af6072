import base64
import json
import re

import numpy as np
import pytest

from lrpca.cli import demo

pytest.importorskip("matplotlib", reason="needs the extra plot")
Image = pytest.importorskip("PIL.Image", reason="needs the extra plot")

FILES = ["background.png", "convergence.png", "foreground.png", "frame.png", "index.html", "mask.png", "result.json"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    lines = []
    return demo.run(tmp_path_factory.mktemp("demo") / "new" / "folder", progress=lines.append), lines


def test_quality(finished):
    result, _ = finished
    assert result.shape == (300, 38400)
    assert result.decomposition.converged
    assert result.f_measure >= 0.9
    assert result.background_error < 0.02
    assert 0.04 < result.foreground_fraction < 0.06
    assert 1.8 < result.decomposition.noise_level < 2.6  # the sensor's is 2


def test_all_files_are_there_and_readable(finished):
    result, lines = finished
    assert sorted(file.name for file in result.page.parent.iterdir()) == FILES
    assert len(lines) == 5
    for name in ("frame", "background", "foreground", "mask"):
        with Image.open(result.page.parent / f"{name}.png") as image:
            assert image.size == (240, 160)
            assert len(np.unique(np.asarray(image))) > (1 if name == "mask" else 50)
    with Image.open(result.page.parent / "convergence.png") as image:
        assert image.width > 1000


def test_pictures_belong_together(finished):
    folder = finished[0].page.parent
    picture = {
        name: np.asarray(Image.open(folder / f"{name}.png")).astype(float)
        for name in ("frame", "background", "foreground", "mask")
    }
    mask = picture["mask"] == 255
    assert np.array_equal(picture["foreground"][mask], picture["frame"][mask])
    assert np.ptp(picture["foreground"][~mask]) == 0
    assert np.median(np.abs(picture["frame"] - picture["background"])[mask]) > 30
    assert np.median(np.abs(picture["frame"] - picture["background"])[~mask]) < 3


def test_numbers_are_in_the_json_and_on_the_page(finished):
    result, _ = finished
    text = (result.page.parent / "result.json").read_text()
    assert str(result.page.parent) not in text
    numbers = json.loads(text)
    assert numbers["f_measure"] == result.f_measure
    assert numbers["n_reads"] == result.decomposition.n_reads
    assert [record["iteration"] for record in numbers["history"]] == list(range(1, result.decomposition.n_iter + 1))
    html = result.page.read_text(encoding="utf-8")
    assert f"{result.f_measure:.3f}" in html and f"{result.background_error:.2%}" in html
    assert "majority vote" in html and "3 x 3" in html
    images = re.findall(r'"data:image/png;base64,([^"]*)"', html)
    assert len(images) >= 4 + 4 * 4 + 4
    assert (result.page.parent / "frame.png").read_bytes() in {base64.b64decode(image) for image in images}
    assert not re.search(r"https?://", html)
