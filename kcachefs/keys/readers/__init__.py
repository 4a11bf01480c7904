"""How to read values whose classes are written in C, or whose attributes are not their meaning.

A reader belongs to one class and turns its instances into plain data and further objects. Most classes are known by
name, so that nothing here imports torch or numpy; a name counts only if its module does offer the class under it. The
instances of a class with neither a reader nor hidden state are what their attributes are.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from kcachefs.keys.asking import ask
from kcachefs.keys.by_identity import ByIdentity
from kcachefs.keys.readers import builtin, libraries, numpy, plain, torch
from kcachefs.keys.readers.reader import Reader
from kcachefs.keys.visibility import is_visible

_BY_CLASS: dict[type, Reader] = {**plain.READERS, **builtin.BY_CLASS}
_BY_NAME: dict[str, Reader] = {
    **builtin.BY_NAME,
    **numpy.READERS,
    **torch.READERS,
    **libraries.READERS,
}


class Knowledge(NamedTuple):
    """What is known of a class: the reader that applies, the class it belongs to, and a class that it cannot read."""

    reader: Reader | None
    base: type
    hidden: type | None


_known = ByIdentity[Knowledge]()


def knowledge_of(cls: type) -> Knowledge:
    """How to read the instances of a class."""
    known = _known.get(cls)
    if known is None:
        known = _look_up(cls)
        _known.put(cls, known)
    return known


def _look_up(cls: type) -> Knowledge:
    hidden: type | None = None
    for base in cls.__mro__[:-1]:
        reader = _BY_CLASS.get(base) or _named(base) or _recognized(base)
        if reader is not None:
            return Knowledge(reader, base, None if reader.covers_subclasses else hidden)
        if hidden is None and not is_visible(base):
            hidden = base
    return Knowledge(None, object, hidden)


def _named(cls: type) -> Reader | None:
    reader = _BY_NAME.get(f"{cls.__module__}.{cls.__qualname__}")
    if reader is None:
        return None
    return reader if ask(sys.modules.get(cls.__module__), cls.__qualname__) is cls else None


def _recognized(cls: type) -> Reader | None:
    """The reader for a class that is known by its kind and not by its name."""
    if tuple in cls.__bases__ and "n_unnamed_fields" in vars(cls):
        return plain.STRUCT_SEQUENCE
    if type(cls).__name__ == "pybind11_type" and "__members__" in vars(cls):
        return libraries.PYBIND_ENUMERATION
    return None
