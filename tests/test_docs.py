"""The documentation tells the truth: its code runs, its benchmark tables are the stored results."""

import doctest
import importlib.util
import json
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import lrpca
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


def test_pages_with_code_are_found() -> None:
    assert {"README.md", "quickstart.md"} <= {page.name for page in PAGES}


def test_architecture_page_names_modules_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", page))
    assert len(named) > 50
    assert not [path for path in sorted(named) if not (ROOT / "src/lrpca" / path).exists()]


@pytest.fixture(scope="module")
def benchmarks_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_benchmarks_page", ROOT / "docs/make_benchmarks_page.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_results_become_tables(benchmarks_page: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one_pass.json").write_text(json.dumps(_result()), encoding="utf-8")
    benchmarks_page.write_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "## One pass\n" in page
    assert "$ python benchmarks/one_pass.py --n 8000\n" in page
    assert "| rank | ms |\n|---:|---:|\n| 5 | 27.1 |\n| 10 | – |\n" in page
    assert r"- a\|b is \<escaped\>" in page
    assert "Measured 2026-11-15 on: cpu some CPU, cores 2. Versions: numpy 2.4.6." in page
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one_pass.json", "page.md"]


def test_page_without_results_says_so(benchmarks_page: ModuleType, tmp_path: Path) -> None:
    assert benchmarks_page.NONE_YET in benchmarks_page.render_page(benchmarks_page.load_results(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"file=bad.json is not JSON .*; run its benchmark again"),
        ("[]", r"file=bad.json lacks everything"),
        (
            json.dumps({"title": "T", "command": "c", "tables": [], "notes": []}),
            r"lacks hardware, versions, date",
        ),
        (
            json.dumps(_result(tables=[{"caption": "C", "columns": ["a", "b"], "rows": [[1]]}])),
            r"has a row of 1 cells under 2 columns in the table 'C'",
        ),
    ],
)
def test_broken_result_file_is_refused(benchmarks_page: ModuleType, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        benchmarks_page.load_results(tmp_path)


def test_stored_results_follow_the_format(benchmarks_page: ModuleType) -> None:
    benchmarks_page.render_page(benchmarks_page.load_results(ROOT / "benchmarks" / "results"))
