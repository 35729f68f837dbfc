"""Says `bytes TAB lines TAB name NUL` for each regular file beneath the given directory.

Names are bytes between a tab and a NUL, so nothing in them can be taken for anything else. A file with a NUL in it has
no lines.
"""

import os
import sys

CHUNK = 1 << 18


def measure(path):
    """The bytes and the lines of a file."""
    size, lines, last, text = 0, 0, b"\n", True
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            text = text and b"\0" not in chunk
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    # What follows the last line's end is a line, too.
    return size, (lines + (last != b"\n")) if text else 0


def main():
    failed = False

    def fail(error):
        nonlocal failed
        failed = True
        print(error, file=sys.stderr)

    out = sys.stdout.buffer
    for directory, _, names in os.walk(os.fsencode(sys.argv[1]), onerror=fail):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            try:
                size, lines = measure(path)
            except OSError as error:
                fail(error)
                continue
            out.write(b"%d\t%d\t%s\0" % (size, lines, path))
    sys.exit(failed)


main()
