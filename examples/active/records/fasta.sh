#!/bin/sh
# Prints the offset of each line that begins with `>`, which is where a record of a FASTA file starts.
# For `outrigger run --records plugin:examples/active/records/fasta.sh --splits 8 …`; `outrigger component add` keeps it in the store, as @fasta.sh.
LC_ALL=C exec awk '/^>/ { printf "%.0f\n", at } { at += length($0) + 1 }'
