"""The documentation tells the truth: its code runs, its benchmark tables are the stored results."""

import doctest
import importlib
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.solvers.methods import METHODS
from lrpca.testing import planted

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if BLOCK.search(page.read_text(encoding="utf-8"))
]


def _example_matrix() -> np.ndarray:
    """Return the `Y` that pages may use without defining it: rank 5, one entry in ten spoiled."""
    return planted((400, 300), rank=5, outlier_fraction=0.1, random_state=0).Y


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run_page(page)
    # What a reader's first run has left is not in the way of the second.
    if any(tmp_path.iterdir()):
        _run_page(page)


def _run_page(page: Path) -> None:
    namespace: dict[str, Any] = {"Y": _example_matrix()}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        code = textwrap.dedent(match.group(1))
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), 0)
            runner.run(test, out=report.append, clear_globs=False)
            namespace = test.globs
        else:
            exec(compile(code, page.name, "exec"), namespace)
    assert runner.failures == 0, "".join(report)


def _api_names() -> list[str]:
    """Return the full names that the API page lists."""
    names, module = [], ""
    for line in (ROOT / "docs/api.md").read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
            module = found[1]
        elif found := re.fullmatch(r"   ([A-Za-z_]\S*)", line):
            names.append(f"{module}.{found[1]}")
    return names


def test_api_page_lists_every_public_name() -> None:
    public = {f"lrpca.{name}" for name in lrpca.__all__ if not name.startswith("__")}
    assert public <= set(_api_names())


@pytest.mark.parametrize("name", _api_names())
def test_docstring_describes_the_signature(name: str) -> None:
    report = pytest.importorskip("numpydoc.validate").validate(name)
    # No docstring, no summary, a documented parameter that does not exist; for functions also an undocumented one.
    wanted = {"GL08", "SS01", "PR02"} | ({"PR01"} if report["type"] != "type" else set())
    assert not [error for error in report["errors"] if error[0] in wanted]


def test_architecture_page_names_modules_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", page))
    assert len(named) > 50
    assert not [path for path in sorted(named) if not (ROOT / "src/lrpca" / path).exists()]


@pytest.fixture(scope="module")
def pages() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("make_pages")
        for name in ("make_pages", "choose"):
            sys.modules.pop(name, None)


def _result(**changes: Any) -> dict[str, Any]:
    return {
        "title": "One pass",
        "command": "python benchmarks/one_pass.py --n 8000",
        "hardware": {"cpu": "some CPU", "cores": 2},
        "versions": {"numpy": "2.4.6"},
        "date": "2026-11-15",
        "tables": [{"caption": "Times", "columns": ["rank", "ms"], "rows": [[5, 27.123456], [10, None]]}],
        "notes": ["a|b is <escaped>"],
    } | changes


def test_results_become_tables(pages: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one_pass.json").write_text(json.dumps(_result()), encoding="utf-8")
    page = pages.benchmarks_page(tmp_path)
    assert "## One pass\n" in page
    assert "$ python benchmarks/one_pass.py --n 8000\n" in page
    assert "| rank | ms |\n|---:|---:|\n| 5 | 27.1 |\n| 10 | – |\n" in page
    assert r"- a\|b is \<escaped\>" in page
    assert "Measured 2026-11-15 on: cpu some CPU, cores 2. Versions: numpy 2.4.6." in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"file=bad.json is not JSON .*; run its benchmark again"),
        (json.dumps({"title": "T", "command": "c", "tables": [], "notes": []}), r"lacks hardware, versions, date"),
        (
            json.dumps(_result(tables=[{"caption": "C", "columns": ["a", "b"], "rows": [[1]]}])),
            r"has a row of 1 cells under 2 columns in the table 'C'",
        ),
    ],
)
def test_broken_result_file_is_refused(pages: ModuleType, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        pages.load_results(tmp_path)


def test_stored_results_follow_the_format(pages: ModuleType) -> None:
    for make in (pages.benchmarks_page, pages.grid_page, pages.gpu_page, pages.choose_page):
        text = make()
        assert "is not stored yet" not in text and "| " in text


@pytest.mark.parametrize(
    ("page", "command"), [("grid", "make ablation"), ("gpu", "make bench-gpu"), ("choose", "make arena")]
)
def test_page_without_result_says_how_to_make_it(pages: ModuleType, tmp_path: Path, page: str, command: str) -> None:
    assert f"`{command}` writes it" in getattr(pages, f"{page}_page")(tmp_path)


def test_the_table_of_methods_says_what_they_take() -> None:
    rows = {}
    for line in (ROOT / "docs/choose.md").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| `(\w+)` \|", line):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows[found[1]] = tuple(cells[1:4])
    words = {True: "yes", False: "no"}
    expected = {
        name: (words[method.needs_rank], words[method.missing], words[method.start]) for name, method in METHODS.items()
    }
    # The default takes a rank, and finds it where none is given.
    expected["lrpca"] = ("no", *expected["lrpca"][1:])
    assert rows == expected
