#!/bin/sh
# Builds libibverbs.so.1 and librdmacm.so.1 with GNU ld, into the directory that is named. GNU ld refuses the version
# script beside rustc's own: so rustc makes an archive, and the C compiler links it.
set -eu
cd "$(dirname "$0")/../../.."
to=${1:-target/c-abi/gnu}
built=${CARGO_TARGET_DIR:-target}/c-abi
mkdir -p "$to"

# The package, the archive, the shared library, and a library that it is linked to, or none.
link() {
    "${CARGO:-cargo}" rustc --quiet --profile c-abi --package "$1" --crate-type staticlib
    map=$(ls -t "$built/build/$1"-*/out/symbols.map | head -n 1)
    # What no node names is hidden: rustc's own script would have said it.
    sed '0,/^}/s//  local: *;\n}/' "$map" > "$to/$3.map"
    "${CC:-cc}" -fuse-ld=bfd -shared -o "$to/$3" -Wl,-soname,"$3" -Wl,--version-script="$to/$3.map" \
        -Wl,--whole-archive "$built/$2" -Wl,--no-whole-archive \
        -Wl,--gc-sections,-z,now,-z,nodelete,-z,defs,--strip-debug ${4+"$4"} -lgcc_s -lc
}

link uverbs-c libibverbs.a libibverbs.so.1
link uverbs-rdmacm librdmacm.a librdmacm.so.1 "$to/libibverbs.so.1"
