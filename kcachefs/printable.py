"""Makes names that anybody may have chosen safe to print: no control character reaches a terminal or a log."""

from __future__ import annotations

import re

_ODD = re.compile(r"[^\n -~]")


def printable(text: str) -> str:
    r"""The text with every character escaped that is invisible on a line, or changes how the rest appears.

    >>> printable("kernel\x1b[2J\n\u202eko.lenrek")
    'kernel\\x1b[2J\\n\\u202eko.lenrek'
    """
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else _escaped(one) for one in text])


def printable_json(text: str) -> str:
    r"""The same for a JSON text, whose meaning does not change.

    >>> printable_json('["\u202eko", "\U000e0001", "日本"]')
    '["\\u202eko", "\\udb40\\udc01", "日本"]'
    """
    return text if text.isascii() and text.isprintable() else _ODD.sub(_in_json, text)


def _in_json(found: re.Match[str]) -> str:
    one = found[0]
    units = one.encode("utf-16-be", "surrogatepass").hex()
    return one if one.isprintable() else "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _escaped(one: str) -> str:
    if "\udc80" <= one <= "\udcff":  # a byte of a name that is not UTF-8
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one.encode("unicode_escape").decode()
