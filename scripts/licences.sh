#!/bin/sh
# Every dependency must be under a licence that fits "Apache-2.0 OR MIT".
set -eu
PATH="$HOME/.cargo/bin:$PATH"
# blessing and WTFPL are those of SQLite and libtomcrypt: they ask for nothing. CDLA-Permissive-2.0
# is for a list of root certificates, which is data and not used in the build for Linux.
cargo metadata --format-version 1 --locked --all-features | python3 -c '
import json, re, sys
fits = {"MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "CC0-1.0", "Unlicense", "Unicode-3.0",
        "MIT-0", "0BSD", "blessing", "WTFPL", "CDLA-Permissive-2.0", "BSL-1.0", "Apache-2.0 WITH LLVM-exception"}
bad = []
packages = json.load(sys.stdin)["packages"]
for package in packages:
    licence = (package["license"] or "").replace("/", " OR ")
    choices = [part.strip(" ()") for part in re.split(r" OR ", licence)]
    if not any(all(p.strip(" ()") in fits for p in choice.split(" AND ")) for choice in choices):
        bad.append("{name} {version}: {license}".format(**package))
if bad:
    sys.exit("licences to look at:\n  " + "\n  ".join(bad))
print(f"licences: {len(packages)} packages, all fit")
'
