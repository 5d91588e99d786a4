"""Files that are written whole or not at all, and that never replace others unasked."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from keyword import iskeyword
from pathlib import Path

from ...ir.diagnostics import Diagnostic, InputError, fail

MOST_CHARACTERS = 80  # of a part of a file's name


def file_stem(*parts: str) -> str:
    """A file name without its ending, of names that may hold any characters, so that Python can import what is
    called so: `palm_540b_decode`."""
    plain = [re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_")[:MOST_CHARACTERS] for part in parts]
    stem = "_".join(part or "program" for part in plain)
    return f"_{stem}" if stem[0].isdigit() or iskeyword(stem) else stem


def path_of(name: str | Path) -> Path:
    """The path that a person names. Raises InputError for an empty name, which as a path is the folder that one is in:
    mostly a variable of the shell's that is not set."""
    if name == "":
        raise fail("The name of a file or folder is empty.", hint="write it out; this folder is `.`")
    return Path(name)


def refuse_existing(directory: Path, names: Iterable[str], force: bool) -> None:
    """Raise InputError where `directory` is no folder, or has one of the files already.

    With `force`, only what is no regular file is in the way.
    """
    try:
        if os.path.lexists(directory) and not directory.is_dir():
            raise fail(f"`{directory}` is not a folder.", hint="name one; it is made where it is missing")
        paths = [directory / name for name in names]
        found = [path for path in paths if os.path.lexists(path) and not (force and path.is_file())]
    except (OSError, ValueError) as error:
        raise _unwritable(directory, error) from None
    hint = "name another folder, or write over it with `--force`"
    if found:
        raise InputError(
            Diagnostic(f"`{path}` exists already.", hint=hint)
            if path.is_file()
            else Diagnostic(f"`{path}` is in the way, and no regular file.", hint="name another folder")
            for path in found
        )


def write_files(directory: Path, texts: Mapping[str, str | bytes], force: bool = False) -> tuple[Path, ...]:
    """Write `texts` (file name to text, in UTF-8, or bytes) into `directory`, which is made if it is missing.

    Each file appears whole. Nothing is written unless all of it can be: raises InputError when a
    file exists already and `force` is off, or when the folder cannot be written to. Interrupted, it leaves nothing
    that is not whole.
    """
    refuse_existing(directory, texts, force)
    pending: dict[Path, Path] = {}
    with _interrupts_raised():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                beside = directory / f".{name}.{os.getpid()}"
                pending[beside] = directory / name
                with beside.open("xb") as file:
                    file.write(text.encode(errors="backslashreplace") if isinstance(text, str) else text)
            for beside, path in pending.items():
                os.replace(beside, path)
        except (OSError, ValueError) as error:
            raise _unwritable(directory, error) from None
        finally:
            for beside in pending:
                _remove(beside)
    return tuple(pending.values())


@contextmanager
def _interrupts_raised() -> Iterator[None]:
    """Where Ctrl-C ends the process at once it does so after what was not finished has been removed."""
    at_once = (
        signal.getsignal(signal.SIGINT) is signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    )
    if not at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupted = False
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if interrupted:
        signal.raise_signal(signal.SIGINT)


def _remove(path: Path) -> None:
    """Remove what is left of a file that was not finished; there is nothing to do where that fails."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _unwritable(directory: Path, error: OSError | ValueError) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    return fail(f"`{str(directory)[:200]}` cannot be written to: {reason}.")
