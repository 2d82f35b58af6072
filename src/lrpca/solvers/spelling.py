"""How a method and its options are written in one word: ``accaltproj:gamma=0.5,beta=0.01``."""

from __future__ import annotations

from typing import Any


def read_method(text: str, parameter: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a method that is written in one word, not yet checked.

    Parameters
    ----------
    text : str
        ``name`` or ``name:option=value,option=value``. A value is a number, ``true``, ``false``, ``none``, a word, or
        several of them joined by ``+``.
    parameter : str
        What messages call it.

    Examples
    --------
    >>> read_method("accaltproj:gamma=0.5,beta=0.01", "method")
    ('accaltproj', {'gamma': 0.5, 'beta': 0.01})
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        option, equals, value = pair.partition("=")
        if not equals or not value:
            raise ValueError(f"{parameter}={text!r} has {pair!r}, which is not option=value; e.g. {name}:option=value")
        options[option] = _value(value)
    return name, options


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return [_value(part) for part in text.split("+")] if "+" in text else text
