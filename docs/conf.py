"""Sphinx configuration: numpydoc API pages, MyST prose, a gallery that runs when the site is built."""

import re
import sys
import warnings
from pathlib import Path

from sphinx.application import Sphinx
from sphinx_gallery.sorting import ExplicitOrder

import lrpca

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from make_pages import PAGES, write_pages  # noqa: E402  (found through the line above)

project = "lrpca"
author = "The lrpca developers"
project_copyright = "2026, The lrpca developers"
version = release = lrpca.__version__

extensions = [f"sphinx.ext.{name}" for name in ("autodoc", "autosummary", "viewcode")]
extensions += ["numpydoc", "myst_parser", "mathml", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build", *(f"gallery/*.{ending}" for ending in ("ipynb", "py", "md5")), "sg_execution_times.rst"]
# Tables that other pages include.
exclude_patterns += [name for name in PAGES if name != "benchmarks.md"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
# `name` in a docstring or an example is code, and a link if the API lists it.
default_role = "py:obj"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# Examples show what they print, and warnings without the paths of this machine.
warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"
EXAMPLES = ("corrupted_matrix", "missing_entries", "corrupted_table", "sensor_anomalies", "occluded_digits")
EXAMPLES += ("pipeline", "schedules", "video")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": ExplicitOrder([f"plot_{name}.py" for name in EXAMPLES]),
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "lrpca"
html_show_sourcelink = False
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Pages of prose have no subpages; examples need the width for their code.
PROSE = {page.stem for page in HERE.glob("*.md")} - {"api"}
html_sidebars = {page: [] for page in (*sorted(PROSE), "benchmarks", "gallery/plot_*")}
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 4,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


# A modulus such as |D| in a docstring, which reStructuredText would take for a substitution; ``literals`` are skipped.
MODULUS = re.compile(r"(``.*?``)|(?<![\w|\\])\|([^\s|`]{1,20})\|(?!\w)")


def _escape_moduli(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[i] = MODULUS.sub(lambda match: match[1] or rf"\|{match[2]}\|", line)


def setup(app: Sphinx) -> None:
    """Make the result pages before Sphinx looks for its sources, and mend docstrings before numpydoc parses them."""
    app.connect("builder-inited", lambda app: write_pages())
    app.connect("autodoc-process-docstring", _escape_moduli, priority=100)
