"""Equations as MathML, which browsers draw by themselves: the site needs no script from the network."""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

MODULUS = re.compile(r"\|([^|]+)\|")
FENCE = re.compile(r'<mo( class="mathopen")?>([|‖])</mo>')


def _mathml(node: nodes.Element, *, as_block: bool = False) -> str:
    """Return the formula; without a form, a browser would space the bars of |x| and ‖x‖ like a minus."""
    math = tex2mathml(MODULUS.sub(r"\\lvert \1 \\rvert ", node.astext()), as_block=as_block)
    return FENCE.sub(lambda bar: f'<mo form="{"prefix" if bar[1] else "postfix"}">{bar[2]}</mo>', math)


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_mathml(node))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math-block"))
    self.body.append(_mathml(node, as_block=True))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({node["number"]})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer under the name "mathml"."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
