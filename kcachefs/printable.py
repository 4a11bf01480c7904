"""Makes names that anybody may have chosen safe to print: no control character reaches a terminal or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text with everything that does not show on a line, or changes how the rest shows, as an escape.

    >>> printable("kernel\x1b[2J\n\u202eko.lenrek")
    'kernel\\x1b[2J\\n\\u202eko.lenrek'
    """
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else _escaped(one) for one in text])


def _escaped(one: str) -> str:
    if "\udc80" <= one <= "\udcff":  # a byte of a name that is not UTF-8
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one.encode("unicode_escape").decode()
