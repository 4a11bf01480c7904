"""Functions that `cached` has decorated, as other functions and values refer to them."""

from __future__ import annotations

from tests.keys.cases.case import Case, mutations, values

CACHED = """
from kcachefs import Cache, cached
cache = Cache(disk=False)
def plain(x):
    return b""
plain.block = 1
plain.table = [1]
@cached(cache=cache)
def helper(x):
    return helper.mode
@cached(cache=cache, ignore=["calls"])
def counting(x):
    counting.calls += 1
    return b""
counting.calls = 0
@cached(cache=cache)
async def later(x):
    return b""
class Compiler:
    @cached(cache=cache)
    def build(self, x):
        return Compiler.build.tile
decorated = cached(cache=cache)(plain)
bound = Compiler().build
@cached(cache=cache)
def build(x):
    return build.tile, helper(x), counting(x), decorated(x), later, Compiler
def kernel(x):
    return build(x)
"""
CHANGES = """
    build.tile = 1
    helper.mode = "a"
    helper.mode = None
    helper.modes = ["a"]
    decorated.block = 2
    decorated.table.append(2)
    later.tile = 1
    Compiler.build.tile = 2
    counting.tile = 1
"""
NO_CHANGES = """
    counting.calls += 1
    decorated.block = plain.block
    helper.mode = "a"; del helper.mode
    build.cache_key(1), helper.cache_info()
"""

CODECS = """
import json
from kcachefs import Cache, cached
cache = Cache(disk=False)
EXACT, SIGN = True, 1
def plain(x):
    return x
def encode(x):
    return json.dumps(x if EXACT else round(x)).encode()
def decode(data, by=1):
    return json.loads(data) * by * SIGN
helper = cached(cache=cache, encode=encode, decode=decode)(plain)
quiet = cached(cache=cache, encode=encode, decode=decode, ignore=["calls"])(plain)
@cached(cache=cache)
def build(x):
    return helper(x)
@cached(cache=cache)
def build_quietly(x):
    return quiet(x)
@cached(cache=cache, encode=encode, decode=lambda data: itself(1) + decode(data), ignore=["calls"])
def itself(x):
    return x
"""
CODEC_CHANGES = """
    EXACT = False
    SIGN = -1
    decode.__defaults__ = (2,)
    encode.level = 1
"""

CASES: list[Case] = [
    *mutations("cached codec", "change", CODECS, CODEC_CHANGES, key="build.cache_key(1).hex()"),
    *mutations("cached codec, ignoring", "change", CODECS, CODEC_CHANGES, key="build_quietly.cache_key(1).hex()"),
    *mutations("cached codec in a ring", "same", CODECS, "itself.cache_key(2)", key="hash_value(itself)"),
    *mutations(
        "cached codec of its own", "same", CODECS, "decode.__defaults__ = (2,)", key="helper.cache_key(1).hex()"
    ),
    *values(
        "cached codec",
        "change",
        CODECS,
        """
        helper || cached(cache=cache)(plain)
        helper || cached(cache=cache, encode=encode, decode=json.loads)(plain)
        helper || cached(cache=cache, encode=json.dumps, decode=decode)(plain)
        helper || cached(cache=cache, encode=encode, decode=decode, encoding="json")(plain)
        """,
    ),
    *values(
        "cached codec by name",
        "same",
        CODECS + "def named(decode): return cached(cache=cache, encode=encode, decode=decode, encoding='a')(plain)\n",
        "named(decode) || named(open('/dev/null').read)",
    ),
    *mutations("cached attribute", "change", CACHED, CHANGES),
    *mutations("cached attribute of itself", "change", CACHED, CHANGES, key="build.cache_key(1).hex()"),
    *mutations("cached attribute in a value", "change", CACHED, CHANGES, key="hash_value([build, Compiler])"),
    *mutations("cached no attribute", "same", CACHED, NO_CHANGES),
    *mutations("cached no attribute of itself", "same", CACHED, NO_CHANGES, key="build.cache_key(1).hex()"),
    *mutations(
        "cached attribute again",
        "change",
        CACHED + "helper.modes = ['a']\nhelper.mode = 1\n",
        """
        helper.mode = 2
        helper.mode = True
        helper.mode = 1.0
        helper.modes.append("b")
        helper.modes[0] = "b"
        del helper.mode
        helper.other = 1
        """,
    ),
    *values(
        "cached",
        "change",
        CACHED,
        """
        build || helper
        decorated || plain
        Compiler.build || bound
        """,
    ),
]
