#!/bin/sh
# Builds libibverbs.so.1 and the libraries that are linked to it with GNU ld, into the directory that is named. GNU ld
# refuses the version script beside rustc's own: so rustc makes an archive, and the C compiler links it.
set -eu
cd "$(dirname "$0")/../../.."
to=${1:-target/c-abi/gnu}
built=${CARGO_TARGET_DIR:-target}/c-abi
mkdir -p "$to"

# The package, the archive, the shared library, and a library that it is linked to, or none.
link() {
    package=$1 archive=$2 library=$3
    "${CARGO:-cargo}" rustc --quiet --profile c-abi --package "$package" --crate-type staticlib
    map=$(ls -t "$built/build/$package"-*/out/symbols.map | head -n 1)
    # What no node names is hidden: rustc's own script would have said it.
    sed '0,/^}/s//  local: *;\n}/' "$map" > "$to/$library.map"
    "${CC:-cc}" -fuse-ld=bfd -shared -o "$to/$library" -Wl,-soname,"$library" -Wl,--version-script="$to/$library.map" \
        -Wl,--whole-archive "$built/$archive" -Wl,--no-whole-archive \
        -Wl,--as-needed,--gc-sections,-z,now,-z,nodelete,-z,defs,--strip-debug ${4+"$4"} -lgcc_s -lc
}

link uverbs-c libibverbs.a libibverbs.so.1
link uverbs-rdmacm librdmacm.a librdmacm.so.1 "$to/libibverbs.so.1"
for name in efa hns mana mlx5; do
    link "uverbs-$name" "lib$name.a" "lib$name.so.1" "$to/libibverbs.so.1"
done
