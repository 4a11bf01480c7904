"""What decides the code that Triton's wrappers of functions compile to, without the caches that grow with use."""

from __future__ import annotations

from typing import Any

# The attributes of all versions of Triton, those of its autotuner and its heuristics included.
_ATTRIBUTES = (
    *("version", "debug", "do_not_specialize", "do_not_specialize_on_alignment", "noinline", "_repr", "__self__"),
    *("configs", "keys", "values", "restore_value", "reset_to_zero", "reset_idx", "restore_idx"),
    *("perf_model", "configs_top_k", "early_config_prune"),
)
# A hook that nobody gave is one of Triton's own.
_HOOKS = (("pre_hook", "user_defined_pre_hook"), ("post_hook", "user_defined_post_hook"))


def settings_of(wrapper: Any) -> list[str]:
    """The attributes of a wrapper that hold its settings."""
    held = vars(wrapper)
    hooks = [hook for hook, is_given in _HOOKS if held.get(is_given)]
    return [name for name in _ATTRIBUTES if name in held] + hooks
