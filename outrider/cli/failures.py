"""What a command says of a failure that is no defect of it (pure)."""

from __future__ import annotations

import errno
from typing import Final

from outrider.errors import OutriderError
from outrider.extras import advice_for

_MACHINE: Final = {
    errno.ENOSPC: "no space is left on the disk; make room, then run the command again",
    errno.EDQUOT: "your quota of the disk is used up; make room, then run the command again",
    errno.EFBIG: "a file may not become so large here; raise the limit (ulimit -f)",
    errno.EROFS: "this file system is read-only; name a folder elsewhere",
    errno.EIO: "the disk reports an error; see the kernel's log",
    errno.EACCES: "permission denied; run the command as the owner, or name another folder",
    errno.EPERM: "not permitted; run the command as the owner, or name another folder",
    errno.EMFILE: "too many open files; raise the limit of this shell (ulimit -n)",
    errno.ENFILE: "too many open files on this machine; end other programs",
    errno.ENOMEM: "no memory is left; end other programs",
    errno.EAGAIN: "no more processes or threads may be started; end other programs",
    errno.EPIPE: "whoever read the output has ended",
}
"""What is the machine's state, not a defect, by errno; and what to do about it."""
_ANY_FILE: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Those that have nothing to do with the file that was met by chance."""


def sentence_of(failure: BaseException) -> str:
    """One sentence for a failure that is no defect: one of our errors, a file that fails, a machine
    without room, an optional package that is missing; "": it is a defect."""
    if isinstance(failure, BaseExceptionGroup):
        told = [sentence_of(it) for it in failure.exceptions]
        return told[0] if all(told) else ""
    if isinstance(failure, OutriderError):
        return failure.message
    if isinstance(failure, ModuleNotFoundError):
        return advice_for(failure.name)
    if not isinstance(failure, OSError):
        return ""
    words = _MACHINE.get(failure.errno or 0, failure.strerror or str(failure))
    if failure.filename is not None and failure.errno not in _ANY_FILE:
        return f"{failure.filename}: {words}"
    return words if failure.errno in _MACHINE else ""
