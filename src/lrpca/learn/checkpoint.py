"""The state of a training on disk: JSON, replaced as a whole, so that the last good one always loads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lrpca.files.atomic import replacing

_FORMAT, _VERSION = "lrpca-checkpoint", 2
# What may change when training is resumed: numbers are kept on the CPU, whatever has made them.
_MAY_DIFFER = {"device"}


class Checkpoint:
    """A file that training writes at intervals and can be resumed from.

    `settings` are what decides the result. A file with other settings raises ValueError; the device may differ.
    """

    def __init__(self, path: str | os.PathLike[str], settings: dict[str, Any]) -> None:
        self.path = Path(path)
        # As JSON gives them back: tuples become lists.
        self._settings = json.loads(json.dumps(settings))

    def save(self, content: dict[str, Any]) -> None:
        """Replace the file by what JSON can hold; whatever happens, either the old or the new one is there, whole."""
        whole = {"format": _FORMAT, "version": _VERSION, "settings": self._settings, **content}
        text = json.dumps(whole, allow_nan=False)
        try:
            with replacing(self.path) as temporary:
                Path(temporary).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            kept = "; the state saved before is still there" if self.path.is_file() else ""
            cause = error.strerror or error
            raise OSError(
                f"checkpoint={str(self.path)!r} cannot be written ({cause}); free space or choose another place{kept}"
            ) from error

    def load(self) -> dict[str, Any]:
        """Return what was saved last; raise if the file belongs to another training."""
        name = str(self.path)
        if not self.path.is_file():
            raise FileNotFoundError(f"checkpoint={name!r} is not a file; leave resume out to begin anew")
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:  # not text, not JSON, or cut short
            raise ValueError(f"checkpoint={name!r} is not valid JSON ({error}); is the file complete?") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT or content.get("version") != _VERSION:
            raise ValueError(f"checkpoint={name!r} is not an lrpca checkpoint of version {_VERSION}; choose another")
        settings = content.get("settings")
        theirs = settings if isinstance(settings, dict) else {}
        for key in sorted((self._settings.keys() | theirs.keys()) - _MAY_DIFFER):
            mine, other = self._settings.get(key), theirs.get(key)
            if mine != other:
                raise ValueError(
                    f"checkpoint={name!r} is of another training ({key}: {_short(other)} there, {_short(mine)} here); "
                    "repeat the arguments it was begun with, or choose another file"
                )
        return content


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file is a checkpoint, of any training."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == _FORMAT


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
