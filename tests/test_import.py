"""`import lrpca` is quick and loads nothing heavy."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import lrpca
from tests.helpers.python import run_python

HEAVY = set(
    "av dask distributed h5py llvmlite matplotlib numba pandas polars pyarrow rich scipy sklearn torch triton typer "
    "zarr".split()
)
# Packages of the extras, by the name they are imported by.
OPTIONAL = HEAVY - {"llvmlite", "numba", "scipy"} | {"PIL", "cv2", "joblib", "numpydoc", "pyrpca", "tensorly"}
ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 0.3


def test_import_loads_no_heavy_module() -> None:
    loaded = json.loads(run_python("import json, sys, lrpca; print(json.dumps(sorted(sys.modules)))"))
    assert "lrpca" in loaded
    assert not [name for name in loaded if name.split(".")[0] in HEAVY]


def test_import_is_quick() -> None:
    # Time of the processor: on a busy machine a clock on the wall measures the other processes.
    code = "import time; start = time.process_time(); import lrpca; print(time.process_time() - start)"
    assert min(float(run_python(code)) for _ in range(3)) < LIMIT_SECONDS


def test_public_names_resolve() -> None:
    assert {"decompose", "Decomposition", "Schedule", "ConvergenceWarning", "__version__"} <= set(lrpca.__all__)
    assert set(lrpca.__all__) <= set(dir(lrpca))
    for name in lrpca.__all__:
        assert getattr(lrpca, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lrpca.no_such_name  # type: ignore[attr-defined]


def test_every_module_can_be_imported_with_the_extras_it_needs() -> None:
    names = [module.name for module in pkgutil.walk_packages(lrpca.__path__, "lrpca.")]
    assert {"lrpca.tables.estimator", "lrpca.kernels.triton.fused_pass", "lrpca.learn.network"} <= set(names)
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert error.name is not None and error.name.split(".")[0] in OPTIONAL


@pytest.mark.slow
def test_tests_are_collected_without_the_extras() -> None:
    options = ["-o", "addopts=--import-mode=importlib", "--assert=plain", "--collect-only", "-q", "tests"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.helpers.hidden_packages", *options]
    environment = os.environ | {"HIDDEN_PACKAGES": ",".join(sorted(OPTIONAL))}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr
