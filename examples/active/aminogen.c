/* AMINOGEN lists the amino-acid sequences whose mass matches a peak of a spectrum within its tolerance.
 *
 * Each line of the input has the mass-to-charge ratio of a peak (one charge) and a tolerance, both in dalton. Each
 * line of the output has a sequence and its ratio. A few bytes of input give gigabytes of output. The work depends on
 * the records, so even a tiny input may be split.
 *
 *   cc -O2 -o aminogen examples/active/aminogen.c crates/active/asfile/asfile.c -I crates/active/asfile
 *   printf '262.1 0.05\n375.2 0.05\n' | outrigger put - --to peaks
 *   outrigger run --in peaks --out candidates --records lines --splits 2 -- ./aminogen
 */
#include "asfile.h"

#include <stdio.h>
#include <stdlib.h>

/* Monoisotopic masses of the residues, in millionths of a dalton, rising. Leucine stands for isoleucine too, which has
 * the same mass. */
static const struct {
    char name;
    long mass;
} residues[] = {
    {'G', 57021464},  {'A', 71037114},  {'S', 87032028},  {'P', 97052764},  {'V', 99068414},
    {'T', 101047679}, {'C', 103009185}, {'L', 113084064}, {'N', 114042927}, {'D', 115026943},
    {'Q', 128058578}, {'K', 128094963}, {'E', 129042593}, {'M', 131040485}, {'H', 137058912},
    {'F', 147068414}, {'R', 156101111}, {'Y', 163063329}, {'W', 186079313},
};
enum { RESIDUES = sizeof residues / sizeof residues[0], LONGEST = 64 };

/* A sequence also has one water, and the charge is a proton. */
static const long ENDS = 18010565 + 1007276;

static char sequence[LONGEST + 1];

/* Writes all sequences that begin with the first `len` letters and weigh `from` to `to` more. */
static int extend(int len, long mass, long from, long to, ASFILE *out)
{
    int at;
    if (from <= 0 && len > 0) {
        char text[LONGEST + 32];
        int count = snprintf(text, sizeof text, "%.*s %.6f\n", len, sequence, (double)mass / 1e6);
        if (aswrite(text, 1, (size_t)count, out) != (size_t)count)
            return -1;
    }
    if (len == LONGEST)
        return 0;
    for (at = 0; at < RESIDUES && residues[at].mass <= to; at++) {
        sequence[len] = residues[at].name;
        if (extend(len + 1, mass + residues[at].mass, from - residues[at].mass, to - residues[at].mass, out) != 0)
            return -1;
    }
    return 0;
}

int main(void)
{
    char line[256];
    ASFILE *in = asopen(NULL, "r"), *out = asopen(NULL, "w");
    if (in == NULL || out == NULL) {
        perror("aminogen");
        return 1;
    }
    while (asgets(line, sizeof line, in) != NULL) {
        double ratio, tolerance;
        if (sscanf(line, "%lf %lf", &ratio, &tolerance) != 2) {
            fprintf(stderr, "aminogen: not a peak and a tolerance: %.80s", line);
            return 1;
        }
        long peak = (long)(ratio * 1e6 + 0.5), within = (long)(tolerance * 1e6 + 0.5);
        if (extend(0, ENDS, peak - within - ENDS, peak + within - ENDS, out) != 0)
            break;
    }
    if (aserror(in) || aserror(out) || asclose(out) != 0) {
        perror("aminogen");
        return 1;
    }
    return 0;
}
