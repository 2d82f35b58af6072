"""Exit codes of ``lrpca``, and their meaning in the help texts."""

import enum

NOTHING_LEFT = "nothing half-written is left"


def exit_codes(done: str, unsatisfying: str | None = None) -> str:
    """Return the end of a help text, with the meaning of code 0 and, where the command has it, of code 4."""
    return "\n".join(
        [
            "Exit codes:",
            f"0    {done}",
            "1    unexpected failure.",
            "2    wrong usage, or an extra is not installed.",
            "3    the input cannot be read, or is not accepted.",
            *([f"4    {unsatisfying}"] if unsatisfying else []),
            "5    the output cannot be written.",
            "130  interrupted by Ctrl-C (143: by SIGTERM); no file is half-written.",
            "141  the reader of the output has closed the pipe.",
        ]
    )


class ExitCode(enum.IntEnum):
    """Meaning of the exit status of ``lrpca``."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INPUT = 3
    NOT_CONVERGED = 4
    OUTPUT = 5
    INTERRUPTED = 130
    UNREAD = 141
    TERMINATED = 143
