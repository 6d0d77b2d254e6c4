"""One run of a comparison, in a process of its own: train as the command does, then answer the test images.

The process lives as long as the comparison: when the other end of its standard input is closed, because the comparison
was killed, it writes a checkpoint and ends.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from .shell import main as command
from .shell import stop


def main() -> None:
    """Train with the arguments of the command line, then write what the model says of the test images."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    arguments = sys.argv[1:]
    folder = Path(arguments[arguments.index("--out") + 1])
    if not (folder / "outcome.json").is_file():
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise
    try:
        from ..comparison.answering import write_answers

        write_answers(folder)
    except (ValueError, OSError) as error:
        stop(error)


def end_with_parent() -> None:
    """Wait for the end of standard input, then leave as if asked to."""
    while os.read(sys.stdin.fileno(), 1):  # not through the buffer, whose lock would be held at the end of the program
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
