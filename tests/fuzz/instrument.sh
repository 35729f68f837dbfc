#!/bin/sh
# What cargo calls in the place of rustc for the workspace's own crates, with rustc's path and arguments (RUSTC_WORKSPACE_WRAPPER).
# Libraries count what runs in them, as libFuzzer reads it, and are fast; its program is linked with libFuzzer, which is in the
# directory $SKILLHOST_LIBFUZZER. Whatever else is needed on the way (build scripts) stays as it is.
set -eu
case " $* " in
*" --crate-name skillhost_libfuzzer "*)
    exec "$@" -Lnative="$SKILLHOST_LIBFUZZER" -lstatic=fuzzer -lstdc++
    ;;
*" --crate-type lib "*)
    # Without `lto=off` the parts of a crate are optimised once more together, which takes longer than all else.
    exec "$@" -Copt-level=1 -Clto=off -Cdebug-assertions=on -Coverflow-checks=on -Cpasses=sancov-module \
        -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
*)
    exec "$@"
    ;;
esac
