/* DSCAL multiplies numbers by a scalar. The input has one number on each line, in text, and the factor is the argument.
 *
 *   cc -O2 -o dscal examples/active/dscal.c crates/active/asfile/asfile.c -I crates/active/asfile
 *   outrigger run --in numbers --out scaled --records lines --splits 4 -- ./dscal 2.5
 */
#include "asfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    char line[512], text[64];
    ASFILE *in = asopen(NULL, "r"), *out = asopen(NULL, "w");
    double factor = argc > 1 ? atof(argv[1]) : 1;
    if (in == NULL || out == NULL) {
        perror("dscal");
        return 1;
    }
    while (asgets(line, sizeof line, in) != NULL) {
        char *end;
        double value = strtod(line, &end);
        int len;
        if (end == line) {
            fprintf(stderr, "dscal: not a number: %.80s", line);
            return 1;
        }
        len = snprintf(text, sizeof text, "%.15g\n", value * factor);
        if (aswrite(text, 1, (size_t)len, out) != (size_t)len)
            break;
    }
    if (aserror(in) || aserror(out) || asclose(out) != 0) {
        perror("dscal");
        return 1;
    }
    return 0;
}
