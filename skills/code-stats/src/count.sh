# Says `bytes TAB lines TAB name NUL` for each regular file beneath $1, an absolute path.
#
# Names are read and written between NULs and start with `/`, so nothing in them can be taken for an option, an
# assignment, the end of a field, or one of gawk's own special files. A file with a NUL in it has no lines.
set -o pipefail
find "$1" -type f -printf '%s\t%p\0' | LC_ALL=C gawk '
BEGIN { RS = "\0" }
{
    tab = index($0, "\t"); size = substr($0, 1, tab - 1); name = substr($0, tab + 1); lines = 0
    RS = "\n"
    while ((got = (getline line < name)) > 0) {
        if (index(line, "\0")) { lines = 0; break }
        lines++
    }
    close(name)
    RS = "\0"
    if (got < 0) { print name ": cannot be read" > "/dev/stderr"; failed = 1 }
    printf "%s\t%d\t%s%c", size, lines, name, 0
}
END { exit failed }'
