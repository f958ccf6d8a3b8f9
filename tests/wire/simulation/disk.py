"""A disk that is full at times, and loses at a crash what nobody has waited for.

Names and contents are those of a real folder; what is noted beside it says what of them would be there after
a crash. The names in a directory are then those of some moment since it was last flushed, each directory for
itself; a file that was written since it was flushed is whole, cut off, empty, zeros, or as it was before.
"""

import errno
import os
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from unittest import mock

CHANGING = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir")


class Crash(BaseException):
    """The machine has stopped."""


class Disk:
    """Watches the folder `root`; `rng` draws what a crash leaves."""

    def __init__(self, root, rng, *, crash_at=0, full=range(0)):
        """`crash_at`: the number of the change before which the machine stops, if any. `full`: numbers of
        changes for which there is no room.
        """
        self.root, self._rng, self._crash_at, self._full = Path(root), rng, crash_at, full
        self.changes = 0
        self.image = None
        """What a crash has left: contents by path, None for a directory."""
        self._fresh = count()
        self._numbers = {}
        """Of files and directories, by their inodes, which are given again."""
        self._flushed, self._last = {}, {}
        """Contents by number: when they were flushed, and before they went away."""
        self._names, self._paths = {}, {}
        """The states of a directory since it was flushed, and its path, by number."""
        self._real = {name: getattr(os, name) for name in (*CHANGING, "open", "write", "fsync")}
        self._look(self.root, new=False)

    @contextmanager
    def watching(self, *modules):
        """The block in which changes pass here. `modules` have a `save_file`, which is not made of `os`."""
        with ExitStack() as stack:
            for name in CHANGING:
                stack.enter_context(mock.patch.object(os, name, self._changing(name)))
            for name in ("open", "write", "fsync"):
                stack.enter_context(mock.patch.object(os, name, getattr(self, f"_{name}")))
            for module in modules:
                saving = self._saving(module.save_file, module.SafetensorError)
                stack.enter_context(mock.patch.object(module, "save_file", saving))
            yield self

    # -- what passes here --

    def _changing(self, name):
        real = self._real[name]

        def change(*paths, **options):
            places = [self._place(path, options) for path in paths if isinstance(path, str | os.PathLike)]
            if not any(map(self._is_inside, places)):
                return real(*paths, **options)
            self._begin(needs_room=name == "mkdir")
            for place in places:
                self._keep(place)
            result = real(*paths, **options)
            if name == "mkdir":
                self._look(places[0], new=True)
            for place in places:
                self._note(place.parent)
            return result

        return change

    def _open(self, path, flags, mode=0o777, *, dir_fd=None):
        place = self._place(path, {"dir_fd": dir_fd})
        makes = flags & os.O_CREAT and self._is_inside(place) and not os.path.lexists(place)
        if makes:
            self._begin(needs_room=True)
        descriptor = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if makes:
            self._number(os.fstat(descriptor).st_ino, new=True)
            self._note(place.parent)
        return descriptor

    def _write(self, descriptor, content):
        if self._is_inside(_path_of(descriptor)):
            try:
                self._begin(needs_room=True)
            except OSError:
                # A disk that is nearly full takes a part of it.
                part = memoryview(content)[: len(content) // 2]
                if part and self._rng.random() < 0.5:
                    return self._real["write"](descriptor, part)
                raise
        return self._real["write"](descriptor, content)

    def _fsync(self, descriptor):
        path = _path_of(descriptor)
        if not self._is_inside(path) and path != self.root:
            return self._real["fsync"](descriptor)
        self._begin(needs_room=True)
        number = self._number(os.fstat(descriptor).st_ino)
        if path.is_dir():
            self._names[number] = [self._listing(path)]
        else:
            self._flushed[number] = path.read_bytes()
        return None

    def _saving(self, save_file, failure):
        def save(tensors, path, **options):
            new = not os.path.lexists(path)
            try:
                self._begin(needs_room=True)
            except OSError as error:
                raise failure(f"I/O error: {error}") from error  # as the library says it
            save_file(tensors, path, **options)
            self._number(os.stat(path).st_ino, new=new)
            self._note(Path(path).parent)

        return save

    # -- what is noted --

    def _begin(self, *, needs_room):
        self.changes += 1
        if self.changes == self._crash_at:
            self.image = {}
            self._leave(self._number(self.root.stat().st_ino), Path())
        if self.image is not None:
            raise Crash
        if needs_room and self.changes in self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_inside(self, path):
        return path is not None and self.root in path.parents

    def _place(self, path, options):
        folder = options.get("dir_fd")
        return Path(os.path.abspath(path)) if folder is None else Path(_path_of(folder), path)

    def _number(self, inode, *, new=False):
        if new or inode not in self._numbers:
            self._numbers[inode] = next(self._fresh)
        return self._numbers[inode]

    def _look(self, directory, *, new):
        number = self._number(directory.stat().st_ino, new=new)
        self._paths[number] = directory
        # What has just been made is on no disk, not even that it is empty.
        self._names[number] = [self._listing(directory)]
        for entry in () if new else directory.iterdir():
            if entry.is_dir():
                self._look(entry, new=False)
            else:
                self._flushed[self._number(entry.stat().st_ino)] = entry.read_bytes()

    def _listing(self, directory):
        with os.scandir(directory) as entries:
            return {
                entry.name: (self._number(entry.inode()), entry.is_dir(follow_symlinks=False))
                for entry in sorted(entries, key=lambda entry: entry.name)
            }

    def _note(self, directory):
        if directory == self.root or self._is_inside(directory):
            with suppress(FileNotFoundError):
                self._names[self._number(directory.stat().st_ino)].append(self._listing(directory))

    def _keep(self, path):
        """The content of a file, or the names in a directory, before it is moved or goes away."""
        with suppress(OSError):
            if path.is_file():
                self._last[self._number(path.stat().st_ino)] = path.read_bytes()

    # -- what a crash leaves --

    def _leave(self, number, place):
        states = self._names[number]
        for name, (entry, is_directory) in self._rng.choice(states).items():
            if is_directory:
                self.image[place / name] = None
                self._leave(entry, place / name)
            else:
                self.image[place / name] = self._content(entry)

    def _content(self, number):
        here = _path_by_number(self.root, self._numbers, number)
        now = here.read_bytes() if here is not None else self._last.get(number, b"")
        flushed = self._flushed.get(number)
        if now == flushed:
            return now
        cut = now[: self._rng.randrange(len(now) + 1)]
        return self._rng.choice((now, cut, b"", bytes(len(now)), b"" if flushed is None else flushed))

    def write_image(self, root):
        """Put what the crash has left into an empty folder."""
        for path, content in self.image.items():
            if content is None:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(content)


def _path_of(descriptor):
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def _path_by_number(root, numbers, number):
    inodes = {inode for inode, one in numbers.items() if one == number}
    for folder, directories, files in os.walk(root):
        if os.stat(folder).st_ino in inodes:
            return Path(folder)
        for name in (*directories, *files):
            if os.lstat(os.path.join(folder, name)).st_ino in inodes:
                return Path(folder, name)
    return None
