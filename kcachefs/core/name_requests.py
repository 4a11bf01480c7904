"""The requests about names, one method each: judged by the policy, then carried out by the tree.

Called by the engine's thread, and by its pools for requests that take long: lookups that wait for a remote tier or a
report, and renames that sync first. Errors carry an errno.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Sequence, Sized

from kcachefs.core.caller import Caller
from kcachefs.core.listing_requests import ListingRequests
from kcachefs.core.options import FOREVER_SECONDS, NAME_MAX, FsOptions
from kcachefs.core.parts import Parts
from kcachefs.core.policies.policy import Policy
from kcachefs.core.remote import Delivery, Elsewhere, Found
from kcachefs.core.report_folder import FOLDER, ReportFolder
from kcachefs.core.squash import squashed
from kcachefs.core.user_quotas import UserQuotas
from kcachefs.core.uses import HEARTBEAT_SECONDS
from kcachefs.errors import FsError
from kcachefs.store.inode_numbers import GROUP_BASE, REPORT_INO, ROOT_INO, SHARED_INO, VIRTUAL_BASE
from kcachefs.store.records import TENANTS, Content, Inode, name_key, unpack_name

_DOTS = (b".", b"..")
_RESERVED = (FOLDER, TENANTS)
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK)


class NameRequests(ListingRequests):
    """What an engine asks about names, beside what it asks about whole folders."""

    options: FsOptions

    def __init__(self, parts: Parts, policy: Policy, report: ReportFolder, quotas: UserQuotas | None) -> None:
        super().__init__(parts, policy, report)
        self.quotas = quotas
        self._held = parts.nodes.lookups
        self._orphans = parts.nodes.orphans
        self._cut_off = parts.nodes.cut_off
        self.tree = parts.tree
        self.files = parts.files
        self._syncer = parts.syncer
        self._lifetimes = parts.lifetimes
        self.listed: Sized = parts.uses.listed
        """Not empty while a process looks around: only then must an engine call `note_use` for opens and reads."""
        self._replay = parts.replay
        self._kernel = parts.kernel
        self.room = parts.room
        self._get = parts.store.catalog.get
        self._lock = parts.store.catalog.lock
        self.has_remote = False
        """Whether a remote tier may have what is missing here: then an engine calls `missed`."""
        self.elsewhere: Elsewhere | None = None
        """Knows what a remote tier has. None: there is no such tier, and the kernel may remember every miss."""
        self.links_differ = policy.links_differ
        """Whether a symbolic link leads different users to different places, so that the kernel must not keep it."""
        self.allows_idmap = parts.options.sharing.idmap
        """Whether the mount may be bound with other user ids (an idmapped mount)."""
        self._has_policy = policy.is_asked
        self._squashes = parts.options.sharing.squashes
        self._withholds_writing = policy.withholds_writing
        self._alters_attributes = self._has_policy or self._squashes
        """Whether inodes may be shown with a mode or owner other than their own."""

    # --- looking ------------------------------------------------------------------------------------------------------

    def lookup(self, caller: Caller, parent: int, name: bytes) -> int | None:
        """The inode under a name, to which the kernel then holds one more reference; None for a miss."""
        if parent == REPORT_INO or (parent == ROOT_INO and name == FOLDER):
            return REPORT_INO if parent == ROOT_INO else self.report.find(caller, name)
        if name in _DOTS and parent < VIRTUAL_BASE:
            return self.nodes.hold(parent if name == b"." else self.nodes.get(parent).parent)
        if self._has_policy:
            ino = self.policy.find(caller, parent, name)
            if ino is None:
                self._forget_miss_if_cut_off(parent, name)
                return None
        else:
            if len(name) > NAME_MAX:
                raise FsError(errno.ENAMETOOLONG)
            raw = self._get(name_key(parent, name))
            if raw is None:
                self._forget_miss_if_cut_off(parent, name)
                return None
            ino = unpack_name(raw)[0]
        real = ino if ino < VIRTUAL_BASE else self.policy.real_inode(ino)
        if real is None:
            return ino
        with self._lock:  # so that an inode found here is not evicted before it counts as in use
            try:
                node = self.nodes.get(real)
            except FsError:
                node = None  # it was evicted just now
            if node is not None and not (self._leaving and self._is_leaving(parent)):
                entry = node.entry
                if entry and (entry == real or entry >= GROUP_BASE):  # as in `is_listed_whole`
                    self._uses.look_up(entry, parent, caller)
                if self._cut_off:
                    self._cut_off.discard(ino)
                if ino == real:  # what `nodes.hold` does
                    held = self._held
                    held[ino] = held.get(ino, 0) + 1
                return ino
        self._forget_miss_if_cut_off(parent, name)
        return None

    def _forget_miss_if_cut_off(self, parent: int, name: bytes) -> None:
        """A name is missing. If no name leads to its folder, the kernel must forget that, or it keeps the folder."""
        if (self._orphans or self._cut_off) and parent < VIRTUAL_BASE and self.nodes.is_cut_off(parent):
            self.name_gone(parent, name)

    def is_quick_to_look_up(self, parent: int, name: bytes) -> bool:
        """Whether a lookup keeps nobody waiting: all but large reports."""
        return parent != REPORT_INO or not self.report.takes_long(name)

    def missed(self, caller: Caller, parent: int, name: bytes) -> Delivery | Found:
        """The caller looked for a name that is missing: what may bring it, if anything. In the engine's thread."""
        return Found.NOWHERE if self.elsewhere is None else self.elsewhere.missed(caller, parent, name)

    def hold(self, ino: int) -> int:
        """The kernel learns of an inode other than by a lookup, and holds one more reference to it."""
        return self.nodes.hold(ino) if ino < VIRTUAL_BASE else ino

    def forget(self, ino: int, count: int) -> None:
        """The kernel lets go of `count` references: with the last one, an inode without a name goes."""
        if self.release(ino, count):
            self.remove_unused((ino,))

    def remove_unused(self, inos: Sequence[int]) -> None:
        """Remove inodes that nothing refers to, as `release` found."""
        self._lifetimes.remove_all_unused(inos)

    def release(self, ino: int, count: int) -> bool:
        """The kernel lets go of `count` references; returns whether that leaves an inode that nothing refers to."""
        if ino < VIRTUAL_BASE:
            is_unused = self._lifetimes.release(ino, count)
            if self._has_policy and not self.nodes.has_references(ino):
                self.policy.forgotten(ino)
            return is_unused
        if ino < SHARED_INO:
            self.report.forget(ino)
        else:
            self.policy.forget(ino, count)
        return False

    def name_seconds(self, ino: int, node: Inode) -> int:
        """How long the kernel may trust a name of this inode without asking again."""
        if ino >= VIRTUAL_BASE:
            usual = 0
        else:
            entry = node.entry
            is_heartbeat = entry and (entry == ino or entry >= GROUP_BASE)
            usual = HEARTBEAT_SECONDS if is_heartbeat else FOREVER_SECONDS
        return self.policy.name_seconds(ino, node, usual) if self._has_policy else usual

    def shown(self, ino: int, node: Inode) -> Inode:
        """An inode as the kernel sees it."""
        if not self._alters_attributes:
            return node
        seen = self.policy.shown(ino, node)
        return squashed(self.options.sharing, seen, self._withholds_writing) if self._squashes else seen

    def note_use(self, caller: Caller, ino: int) -> None:
        """The caller opened or read a file. The lookup has counted that use, except where a process looked around."""
        if ino < VIRTUAL_BASE and self.listed:
            node = self.nodes.get(ino)
            if node.entry:  # an unsealed file may be the caller's own, just being written: that is no hit
                self._uses.use(node.entry, caller, may_hit=node.content == Content.OBJECT)

    def readlink(self, caller: Caller, ino: int) -> bytes:
        return self.policy.readlink(caller, ino)

    def answer_of(self, request: int) -> int | None:
        """The inode in the reply to an earlier worker's request, 0 if none; None if the request did not take effect."""
        return self._replay.answer(request)

    # --- making -------------------------------------------------------------------------------------------------------

    def make(
        self, caller: Caller, parent: int, name: bytes, mode: int, *, rdev: int = 0, target: bytes = b""
    ) -> tuple[int, Inode]:
        """mkdir, mknod, symlink: a new inode, which the kernel then holds."""
        if stat.S_IFMT(mode) in (stat.S_IFCHR, stat.S_IFBLK):
            raise FsError(errno.EPERM, "device files are refused")
        if stat.S_IFMT(mode) not in _KINDS or mode > 0o177777:
            raise FsError(errno.EINVAL)
        return self._add(caller, parent, name, mode, rdev, target)

    def create(
        self, caller: Caller, parent: int, name: bytes, mode: int, *, exclusively: bool = True
    ) -> tuple[int, Inode]:
        """A new file, which the kernel then holds.

        If the file exists already, it came without the kernel's knowledge, and the kernel would neither check its mode
        nor truncate it. ESTALE makes the kernel look the name up again and then open the file that it finds.
        """
        try:
            return self._add(caller, parent, name, stat.S_IFREG | stat.S_IMODE(mode))
        except FsError as error:
            if error.errno != errno.EEXIST or exclusively:
                raise
            raise FsError(errno.ESTALE) from None

    def _add(
        self, caller: Caller, parent: int, name: bytes, mode: int, rdev: int = 0, target: bytes = b""
    ) -> tuple[int, Inode]:
        _refuse_reserved(parent, name)
        if self._has_policy:
            own = self.policy.make_in_memory(caller, parent, name, mode)
            if own is not None:
                return own[0], self.shown(*own)
            self.policy.authorize_add(caller, parent, name)
            self.policy.authorize_kind(caller, mode)
            mode = self.policy.allowed_mode(mode)
        if self.quotas is not None:
            self.quotas.check_new(caller, len(target))
        with self._lock:  # so that a file that joins an old group is not evicted with it before the file is in use
            ino, node = self.tree.create(caller, parent, name, mode, rdev, target)
            self.nodes.hold(ino)
        return ino, self.shown(ino, node) if self._alters_attributes else node

    def link(self, caller: Caller, ino: int, parent: int, name: bytes) -> Inode:
        _refuse_reserved(parent, name)
        self.policy.authorize_link(caller, ino, parent, name)
        self.policy.authorize_add(caller, parent, name)
        if self.quotas is not None:
            self.quotas.check_link(caller, ino)
        self.tree.link(caller, ino, parent, name)
        self.nodes.hold(ino)
        return self.shown(ino, self.files.attributes(ino))

    # --- removing and moving ------------------------------------------------------------------------------------------

    def unlink(self, caller: Caller, parent: int, name: bytes) -> None:
        _refuse_reserved(parent, name)
        if self._has_policy:
            if self.policy.remove_from_memory(caller, parent, name):
                return
            self.policy.authorize_remove(caller, parent, name, is_dir=False)
        self.tree.unlink(caller, parent, name)
        self._forget_miss_if_cut_off(parent, name)

    def rmdir(self, caller: Caller, parent: int, name: bytes) -> None:
        _refuse_reserved(parent, name)
        if self._has_policy:
            self.policy.authorize_remove(caller, parent, name, is_dir=True)
        self.tree.rmdir(caller, parent, name)
        self._forget_miss_if_cut_off(parent, name)

    def authorize_rename(
        self, caller: Caller, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        """Judge a rename that will be carried out later. `rename` judges it again: names may have changed by then."""
        _refuse_reserved(parent, name)
        _refuse_reserved(new_parent, new_name)
        self.policy.authorize_rename(caller, parent, name, new_parent, new_name, flags)

    def rename(
        self, caller: Caller, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0
    ) -> None:
        _refuse_reserved(parent, name)
        _refuse_reserved(new_parent, new_name)
        if self._syncer.was_used:
            if self._has_policy:
                self.policy.authorize_rename(caller, parent, name, new_parent, new_name, flags)  # before any sync
            self._syncer.before_rename(parent, name, new_parent, new_name)
        if not self._has_policy:
            self.tree.rename(caller, parent, name, new_parent, new_name, flags)
            return
        if self.policy.authorize_rename(caller, parent, name, new_parent, new_name, flags):
            self.tree.unlink(caller, parent, name)
            # The kernel moves the name in its own cache; this waits until that is done, and corrects the name.
            self._tell_gone(new_parent, new_name)
            return
        self.tree.rename(caller, parent, name, new_parent, new_name, flags, self.policy.renamed)

    def is_quick_to_rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> bool:
        """Whether a rename keeps nobody waiting: nothing has to be synced for it."""
        return not (self._syncer.was_used and self._syncer.is_needed_for_rename(parent, name, new_parent, new_name))

    def name_gone(self, parent: int, name: bytes) -> None:
        """A name went, or is about to: have the kernel ask again wherever it is shown. Any thread, no lock held."""
        self._tell_gone(parent, name)
        for folder in self.policy.also_named_in(parent):
            self._tell_gone(folder, name)

    def _tell_gone(self, folder: int, name: bytes) -> None:
        self._kernel.name_gone(folder, name, folder if self.hide_number is None else self.hide_number(folder))


def _refuse_reserved(parent: int, name: bytes) -> None:
    if parent == REPORT_INO or (parent == ROOT_INO and name in _RESERVED):
        raise FsError(errno.EPERM, "the report's folder and the private trees cannot be changed")
