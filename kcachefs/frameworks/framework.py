"""What a record of a framework says: the fields of the table in `records.py`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Framework:
    """What kcachefs knows about one framework's cache."""

    name: str
    namespace: str
    """Its folder in the mount."""
    default: str
    """Where its cache is if no variable is set."""
    layout: str
    """What it contains. kcachefs/core/layouts.py defines its entries."""
    needs: str
    """What it needs from a filesystem beyond files and folders."""
    source: str
    """Where these facts come from."""
    variables: dict[str, str] = field(default_factory=dict)
    """Each variable and the folder, relative to the mount, that it is set to."""
    settings: dict[str, str] = field(default_factory=dict)
    """Variables that name no folder."""
    packages: tuple[str, ...] = ()
    """Distributions; if any of them is installed, the framework is."""
    modules: tuple[str, ...] = ()
    """Modules that read the variable when they are imported; setting it later has no effect."""
    note: str = ""
    on_request: bool = False
    """Whether only `--only` moves it: people set it up for all builds, or a move would hide what a package ships."""
    where_it_helps: bool = False
    """Whether it is moved only for commands that gain by it; `bytecode.py` judges that, and sets its variable."""

    @property
    def obeys(self) -> bool:
        """Whether it can be told where to keep its cache."""
        return bool(self.variables)
