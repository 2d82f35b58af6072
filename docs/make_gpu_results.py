"""Turn ``benchmarks/results/gpu.json`` into the tables that the page about GPUs includes.

The file has the format of `make_benchmarks_page`. Run ``python docs/make_gpu_results.py`` to write
``docs/gpu_results.md``; building the site does it too.
"""

from pathlib import Path

from make_benchmarks_page import load_result, render_result, write_if_changed

NAME, COMMAND = "gpu.json", "make bench-gpu"


def write_gpu(results_folder: Path, page: Path) -> None:
    """Write the tables, unless they already read the same.

    Parameters
    ----------
    results_folder : pathlib.Path
        Where the result file is; if it is absent, a line says how to make it.
    page : pathlib.Path
        The Markdown file to write.
    """
    path = results_folder / NAME
    text = f"`benchmarks/results/{NAME}` is not stored yet; `{COMMAND}` writes it, on a machine with a GPU.\n"
    if path.exists():
        # The page has a heading of its own.
        text = render_result(load_result(path)).partition("\n")[2].lstrip()
    write_if_changed(page, text)


if __name__ == "__main__":
    here = Path(__file__).parent
    write_gpu(here.parent / "benchmarks" / "results", here / "gpu_results.md")
