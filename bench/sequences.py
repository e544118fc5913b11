#!/usr/bin/env python3
"""Generated DNA that is worth a BLAST search: families of sequences with common ancestors, from a fixed seed.

    sequences.py DATABASE.fa QUERY.fa

The search itself is a real program that computes on these. Only its input is generated, so that the process images can
be taken on any machine without downloading a sequence collection.
"""
import random
import sys

FAMILIES, MEMBERS, LENGTH, QUERIES = 400, 25, 3000, 400


def main(database, query):
    rng = random.Random(20110404)
    ancestors = ["".join(rng.choices("ACGT", k=LENGTH)) for _ in range(FAMILIES)]

    def descendant(parent, rate):
        """The parent with point mutations, and now and then a short deletion or a repeat."""
        out, i = [], 0
        while i < len(parent):
            step = int(rng.expovariate(rate)) + 1
            out.append(parent[i:i + step])
            i += step
            kind = rng.random()
            if kind < 0.8:
                out.append(rng.choice("ACGT"))
                i += 1
            elif kind < 0.9:
                i += rng.randint(1, 12)
            else:
                out.append(parent[max(0, i - rng.randint(1, 12)):i])
        return "".join(out)

    def write(file, name, sequence):
        file.write(f">{name}\n")
        file.writelines(sequence[i:i + 70] + "\n" for i in range(0, len(sequence), 70))

    with open(database, "w", encoding="ascii") as out:
        for f, ancestor in enumerate(ancestors):
            for m in range(MEMBERS):
                write(out, f"family{f}.{m}", descendant(ancestor, 0.02 + 0.01 * m))
    with open(query, "w", encoding="ascii") as out:
        for q in range(QUERIES):
            write(out, f"query{q}", descendant(ancestors[rng.randrange(FAMILIES)], 0.05))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
