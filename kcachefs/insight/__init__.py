"""Why a cache missed, and what it holds: read from the stored artefacts alone, without executing any of them.

A parser turns an entry's files into a recipe: the ingredients of its key, as far as the files reveal them. An
explanation compares a new entry's recipe with that of the nearest older one. All of it runs in the process of the
command that asks, never in the daemon.
"""
