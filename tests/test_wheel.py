"""The built wheel, installed with its core dependencies alone into an empty environment."""

import re
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NO_NETWORK = re.compile(r"NewConnectionError|ConnectionError|Max retries exceeded|name resolution|ProxyError")


def _run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd)


@dataclass(frozen=True)
class Wheel:
    path: Path
    names: frozenset[str]
    metadata: Message


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    folder = tmp_path_factory.mktemp("wheel")
    built = _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = frozenset(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        return Wheel(path, names, Parser().parsestr(archive.read(metadata).decode()))


@pytest.fixture(scope="module")
def environment(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    constraints = ROOT / "constraints.txt"
    installed = _run(
        folder / "bin/python", "-m", "pip", "install", "--retries", "1", "-c", constraints, wheel.path, cwd=folder
    )
    if installed.returncode and NO_NETWORK.search(installed.stdout + installed.stderr):
        pytest.skip("the package index cannot be reached, so the wheel cannot be installed")
    assert installed.returncode == 0, installed.stdout + installed.stderr
    return folder


def test_wheel_is_pure_python(wheel: Wheel) -> None:
    assert wheel.path.name.endswith("-py3-none-any.whl")


def test_wheel_holds_types_models_and_licence(wheel: Wheel) -> None:
    models = {path.name for path in (ROOT / "src/lrpca/models").glob("*.json")}
    assert models
    assert {f"lrpca/models/{name}" for name in models} <= wheel.names
    assets = {path.name for path in (ROOT / "src/lrpca/video").iterdir() if path.suffix in (".css", ".js", ".html")}
    assert assets
    assert {f"lrpca/video/{name}" for name in assets} <= wheel.names
    assert {"lrpca/py.typed", "lrpca/report.css", "lrpca/report.html"} <= wheel.names
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.names)
    assert all(name.startswith(("lrpca/", "lrpca-")) for name in wheel.names)
    assert not [name for name in wheel.names if "__pycache__" in name or name.endswith((".pyc", ".nbi", ".nbc"))]


def test_core_dependencies_are_three(wheel: Wheel) -> None:
    requirements = wheel.metadata.get_all("Requires-Dist", [])
    core = {re.match(r"[\w-]+", line).group() for line in requirements if "extra ==" not in line}
    assert core == {"numpy", "scipy", "numba"}


def test_core_install_decomposes(environment: Path) -> None:
    code = """
import importlib.metadata, numpy as np, lrpca
installed = {d.metadata["Name"].lower() for d in importlib.metadata.distributions()}
assert not installed & {"typer", "rich", "h5py", "pyarrow", "matplotlib", "torch", "pandas"}, installed
rng = np.random.default_rng(0)
X = rng.standard_normal((300, 3)) @ rng.standard_normal((3, 200))
Y = X + 5 * rng.standard_normal(X.shape) * (rng.random(X.shape) < 0.1)
d = lrpca.decompose(Y, rank=3)
assert d.converged, d.reason
print(np.linalg.norm(d.L @ d.R.T - X) / np.linalg.norm(X))
"""
    ran = _run(environment / "bin/python", "-W", "error", "-c", code, cwd=environment)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 1e-5


def test_command_without_its_extra_says_what_to_install(environment: Path) -> None:
    ran = _run(environment / "bin/lrpca", "demo", cwd=environment)
    assert ran.returncode == 2
    assert "pip install" in ran.stderr and "lrpca[cli]" in ran.stderr
    assert "Traceback" not in ran.stderr
