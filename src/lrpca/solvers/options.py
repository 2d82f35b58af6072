"""Options of methods: a check for each kind of value, and their text form ``accaltproj:gamma=0.5,beta=0.01``."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_LARGEST = float(np.finfo(float).max)

# Takes an option's name and value, returns the value to use or raises ValueError.
Check = Callable[[str, Any], Any]


def _checked(fits: Callable[[Any], bool], convert: Callable[[Any], Any], rule: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if fits(value):
            return convert(value)
        raise ValueError(f"options[{name!r}]={value!r} is {rule}")

    return check


def number(
    *, above: float = -math.inf, least: float = -math.inf, below: float = math.inf, most: float = math.inf
) -> Check:
    """Return the check of a finite real number within bounds."""
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("above", above), ("at least", least), ("below", below), ("at most", most))
        if math.isfinite(bound)
    ]

    def fits(value: Any) -> bool:
        # Not math.isfinite, which an integer of 400 digits is too much for.
        return is_real(value) and abs(value) <= _LARGEST and above < value < below and least <= value <= most

    return _checked(fits, float, f"not a number {' and '.join(bounds)}; give one that is")


def integer(least: int) -> Check:
    """Return the check of an integer of at least that size."""
    rule = f"not an integer of at least {least}; e.g. {least + 1}"
    return _checked(lambda value: is_integer(value) and value >= least, int, rule)


def choice(*known: str) -> Check:
    """Return the check of one of some words."""
    rule = f"unknown; use one of {', '.join(known)}"
    return _checked(lambda value: isinstance(value, str) and value in known, str, rule)


def flag() -> Check:
    """Return the check of True or False."""
    return _checked(lambda value: isinstance(value, bool | np.bool_), bool, "not True or False; give one of them")


def some_of(known: Mapping[str, str], meaning: str) -> Check:
    """Return the check of a list of names (or a single one) out of `known`."""
    every = ", ".join(known)

    def check(name: str, value: Any) -> frozenset[str]:
        chosen = [value] if isinstance(value, str) else value
        if not isinstance(chosen, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in chosen):
            raise ValueError(f"options[{name!r}]={value!r} is not a list of names; use some of {every}")
        for one in chosen:
            if one not in known:
                raise ValueError(f"options[{name!r}]={one!r} is no {meaning}; use some of {every}")
        return frozenset(chosen)

    return check


def check_options(options: Any, checks: Mapping[str, Check], method: str) -> dict[str, Any]:
    """Return the options that were given, each checked; those that are None count as not given."""
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"options={options!r} is not a dict; pass e.g. {{{next(iter(checks), 'name')!r}: ...}}")
    known = ", ".join(checks) or "none, it has no options"
    for name in options or {}:
        if name not in checks:
            raise ValueError(f"options={{{name!r}: ...}} is unknown to method={method!r}; use {known}")
    return {name: checks[name](name, value) for name, value in (options or {}).items() if value is not None}


def is_integer(value: Any) -> bool:
    """Tell whether a value is an integer, and not True or False."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)


def is_real(value: Any) -> bool:
    """Tell whether a value is a real number, and not True or False."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def read_method(text: str, parameter: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options, not yet checked, of ``name`` or ``name:option=value,option=value``.

    A value is a number, ``true``, ``false``, ``none``, a word, or several of them joined by ``+``. Error messages name
    the `parameter`.

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
