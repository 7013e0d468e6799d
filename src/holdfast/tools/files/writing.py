"""Writing, editing and patching files: judged whole before anything is changed, and written whole or not at all.

Writers in one folder take turns, across processes: two edits of one file that a model asks for at once are both in it
afterwards. A call that was cancelled while it waited for its turn changes nothing.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from holdfast.errors import OutcomeUnknown, ToolFailed
from holdfast.redaction import marks_added
from holdfast.system import disk
from holdfast.tools.context import ToolContext
from holdfast.tools.files import patch as patches
from holdfast.tools.files.edits import FileEdit, edited
from holdfast.tools.files.patch import FilePatch
from holdfast.tools.files.reading import go_on, has_numbers, refuse_binary
from holdfast.tools.files.root import Root, RootPlace, told
from holdfast.tools.files.versions import Version, Versions, tagged, version_of, whole

TURN_WAIT_S = 30.0
TURN_LOOK_S = 0.01


class _Found(NamedTuple):
    """A file as it was before a change."""

    text: str
    stat: os.stat_result
    version: Version


class _Change(NamedTuple):
    """What a patch does in one place. `before` None: there is no file; `after` None: there is none afterwards."""

    place: RootPlace
    before: _Found | None
    after: bytes | None


class Writer:
    def __init__(self, root: Root, bytes_max: int, versions: Versions) -> None:
        self._root = root
        self._versions = versions
        self._bytes_max = bytes_max

    def write_file(self, path: str, content: str, context: ToolContext) -> str:
        """Make a file, or replace all that is in it. Missing folders are made. A file that is there must have been
        read before; to change some of it, use edit_file."""
        go_on(context)
        data = self._encoded(content)
        with self._root.place(path, writes=True, make_folders=True) as place:
            _refuse_folder(place)
            with _turn([place.folder], context):
                if marks_added("", content) or has_numbers(content):
                    before = self._before(place)
                    _refuse_marks(before, content, place)
                    _refuse_numbers(before, content, place)
                if (now := _version_now(place)) is not None and now.text != content:  # a rerun finds its own work
                    self._versions.check(place, now, context, whole=True)
                disk.write(place.folder, place.name, data)
                seen = self._wrote(place, data, context)
        return f"Wrote {len(data):,} bytes to {place.shown}.\n[{tagged([seen])}]"

    def edit_file(
        self,
        path: str,
        context: ToolContext,
        old: str = "",
        new: str = "",
        replace_all: bool = False,
        edits: list[FileEdit] | None = None,
    ) -> str:
        """Replace `old` by `new` in a text file. `old` must be in it exactly as given, and only once, unless
        `replace_all` is true: give enough lines around it. For several changes give `edits` instead, a list of
        {old, new, replace_all}: they are applied in order, all or none."""
        go_on(context)
        if edits and (old or new):
            raise ToolFailed("give old and new, or edits, not both")
        wanted = edits or [FileEdit(old, new, replace_all)]
        with self._root.place(path, writes=True) as place, _turn([place.folder], context):
            before = self._read(place)
            self._versions.check(place, before.version, context, whole=False)
            for edit in wanted:
                if edit.old not in before.text:
                    _refuse_numbers("", edit.old, place)
                _refuse_numbers(edit.old, edit.new, place)
            changed, count = edited(before.text, wanted, place.shown)
            _refuse_marks(before.text, changed, place)
            data = self._encoded(changed)
            _refuse_changed(place, before)
            disk.write(place.folder, place.name, data)
            seen = self._wrote(place, data, context)
        done = f"Replaced {count:,} in {place.shown}." if count > 1 else f"Edited {place.shown}."
        return f"{done}\n[{tagged([seen])}]"

    def apply_patch(self, patch: str, context: ToolContext) -> str:
        """Change several files at once, whole or not at all. It begins with the line `*** Begin Patch` and ends with
        `*** End Patch`. Between them `*** Update File: path` (perhaps with `*** Move to: path` below it) is
        followed by chunks: lines that begin with a space stay, with - go, with + come; an `@@ line` before a chunk
        says behind which line of the file it is. `*** Add File: path` is followed by + lines, and
        `*** Delete File: path` by nothing."""
        go_on(context)
        wanted = patches.parsed(patch)
        with ExitStack() as held:
            # What exists is looked up before any folder is made for what does not.
            old = [held.enter_context(self._root.place(each.path, writes=True)) for each in wanted if not each.adds]
            self._refuse_existing(wanted)
            made = [path for each in wanted if (path := each.path if each.adds else each.move_to) is not None]
            new = [held.enter_context(self._root.place(path, writes=True, make_folders=True)) for path in made]
            held.enter_context(_turn([place.folder for place in (*old, *new)], context))
            changes = list(self._changes(wanted, iter(old), iter(new)))
            for change in changes:
                if change.before is not None:
                    self._versions.check(change.place, change.before.version, context, whole=False)
                    _refuse_changed(change.place, change.before)
            _apply(changes)
            seen = [
                self._wrote(change.place, change.after, context) for change in changes if change.after is not None
            ]
        end = [f"[{tagged(seen)}]"] if seen else []
        return "\n".join(["Done:", *(_done(each) for each in wanted), *end])

    def _wrote(self, place: RootPlace, data: bytes, context: ToolContext) -> Version:
        version = version_of(place, data, os.stat(place.name, dir_fd=place.folder, follow_symlinks=False))
        self._versions.remember(place, version, context)
        return version

    def _changes(
        self, wanted: Sequence[FilePatch], old: Iterator[RootPlace], new: Iterator[RootPlace]
    ) -> Iterator[_Change]:
        for each in wanted:
            if each.content is not None:
                place = next(new)
                _refuse_folder(place)
                _refuse_present(place)
                _refuse_marks("", each.content, place)
                yield _Change(place, None, self._encoded(each.content))
                continue
            place = next(old)
            before = self._read(place)
            if each.deletes:
                yield _Change(place, before, None)
                continue
            text = patches.patched(before.text, each.chunks, place.shown)
            _refuse_marks(before.text, text, place)
            if each.move_to is None:
                yield _Change(place, before, self._encoded(text))
            else:
                to = next(new)
                _refuse_folder(to)
                _refuse_present(to)
                yield _Change(to, None, self._encoded(text))
                yield _Change(place, before, None)

    def _refuse_existing(self, wanted: Sequence[FilePatch]) -> None:
        for path in (each.path if each.adds else each.move_to for each in wanted):
            if path is None:
                continue
            try:
                with self._root.place(path, writes=True) as place:
                    _refuse_present(place)
            except ToolFailed as error:
                if not isinstance(error.__cause__, FileNotFoundError):  # its folder is still to be made
                    raise

    def _read(self, place: RootPlace) -> _Found:
        with told(place.shown), place.opened() as (file, found):
            if found.st_size > self._bytes_max:
                raise ToolFailed(
                    f"{place.shown} has {found.st_size:,} bytes, more than {self._bytes_max:,} are not edited"
                )
            refuse_binary(file, place, found.st_size)
            with open(file, "rb", closefd=False) as stream:
                data = stream.read(self._bytes_max + 1)
        try:
            return _Found(data.decode(), found, version_of(place, data, found))
        except UnicodeDecodeError as error:
            raise ToolFailed(f"{place.shown} is not UTF-8 (byte {error.start:,}): editing would damage it") from None

    def _before(self, place: RootPlace) -> str:
        """As far as it is text that we would edit."""
        try:
            return self._read(place).text
        except (OSError, ToolFailed):
            return ""

    def _encoded(self, content: str) -> bytes:
        try:
            data = content.encode()
        except UnicodeEncodeError:
            raise ToolFailed("the content has a lone surrogate, which is no text") from None
        if len(data) > self._bytes_max:
            raise ToolFailed(f"the file would have {len(data):,} bytes, the limit is {self._bytes_max:,}")
        return data


def _apply(changes: Sequence[_Change]) -> None:
    """One file after the other; where one fails, those before it are put back."""
    done: list[_Change] = []
    for change in changes:
        try:
            with told(change.place.shown):
                _put(change.place, change.after)
            done.append(change)
        except ToolFailed as error:
            if lost := _put_back(done):
                raise OutcomeUnknown(
                    f"{error}. What was changed before it could not be put back: look at {', '.join(lost)}"
                ) from error
            raise


def _put_back(done: Sequence[_Change]) -> list[str]:
    """The names of those that could not be."""
    lost = []
    for place, before, _ in reversed(done):
        try:
            _put(place, None if before is None else before.text.encode())
        except OSError:
            lost.append(place.shown)
    return lost


def _put(place: RootPlace, data: bytes | None) -> None:
    if data is None:
        disk.remove(place.folder, place.name)
    else:
        disk.write(place.folder, place.name, data)


def _done(patch: FilePatch) -> str:
    if patch.adds:
        return f"added {patch.path}"
    if patch.deletes:
        return f"deleted {patch.path}"
    return f"changed {patch.path}" + (f", now {patch.move_to}" if patch.move_to is not None else "")


def _version_now(place: RootPlace) -> Version | None:
    """None: there is no such file."""
    try:
        with place.opened() as (file, found):
            return version_of(place, whole(file, found), found)
    except FileNotFoundError:
        return None


def _refuse_changed(place: RootPlace, before: _Found) -> None:
    with told(place.shown):
        now = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    then = before.stat
    if (now.st_ino, now.st_mtime_ns, now.st_size) != (then.st_ino, then.st_mtime_ns, then.st_size):
        raise ToolFailed(f"{place.shown} was not changed: another program changed it this moment; read it again")


def _refuse_marks(before: str, after: str, place: RootPlace) -> None:
    """What was read without its secrets is not to be written back without them."""
    if marks := marks_added(before, after):
        raise ToolFailed(
            f"{place.shown} was not changed: {', '.join(marks)} stands for a secret that is not shown here, and "
            "would take its place in the file. Leave the lines that hold it as they are, and edit around them."
        )


def _refuse_numbers(before: str, after: str, place: RootPlace) -> None:
    """Those that `read_file` shows. A text that had such numbers before may have them."""
    if has_numbers(after) and not has_numbers(before):
        raise ToolFailed(
            f"{place.shown} was not changed: every line given begins with the number that read_file shows before it, "
            "which is not in the file. Give the lines without them."
        )


def _refuse_folder(place: RootPlace) -> None:
    if place.name == ".":
        raise ToolFailed(f"{place.shown} is a folder, not a file")


def _refuse_present(place: RootPlace) -> None:
    try:
        os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    raise ToolFailed(f"nothing was changed: {place.shown} exists already; a patch adds or moves only to a new name")


@contextmanager
def _turn(folders: Sequence[int], context: ToolContext) -> Iterator[None]:
    """One writer at a time in each of these folders, by locks that every process sees and that end with their holder.

    They are taken in one order, so that two writers never wait for each other.
    """
    until = time.monotonic() + TURN_WAIT_S
    by_identity = {(found.st_dev, found.st_ino): folder for folder in folders for found in (os.fstat(folder),)}
    with ExitStack() as held:
        for _, folder in sorted(by_identity.items()):
            _lock(folder, until, context)
            held.callback(fcntl.flock, folder, fcntl.LOCK_UN)
        yield


def _lock(folder: int, until: float, context: ToolContext) -> None:
    while True:
        go_on(context)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise ToolFailed(
                    f"another process has the folder locked for more than {TURN_WAIT_S:g} s; nothing was changed"
                ) from None
            time.sleep(TURN_LOOK_S)
        else:
            return
