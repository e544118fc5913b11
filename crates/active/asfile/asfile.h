/* libasfile: how a component reads its input and writes its outputs, with the interface of stdio.
 *
 * A component is any program that Outrigger runs over stored data (see docs/programs.md). Its input is a stream that another program may
 * still be writing: a read waits for more, and sees the end only when the writer has closed the file. Nothing that is written here is
 * visible to anybody before the component has ended with exit code 0 and the whole job has succeeded.
 *
 * Without Outrigger (AS_JOB is not set) the same program works on standard input and output, and on files in the current directory.
 */
#ifndef ASFILE_H
#define ASFILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open input or output. */
typedef struct asfile ASFILE;

/* Opens. `mode` is "r" or "w".
 *   reading: NULL, "" or "-" is the component's input. Where it was asked for as a file ({in}) that is one, which can be moved in (AS_INPUT_FILE); else it is a stream.
 *            Any other name is the stored file of that path that is there to look at (--with), or another input where inputs are files; ENOENT if there is none. Outside
 *            of a job it is a file in the current directory. EINVAL for what leads elsewhere (an absolute path, "..").
 *   writing: NULL, "" or "-" is the component's unnamed output; the name of an output (--out NAME=...) is that one; any other name is a file of that
 *            name below a directory output (--out DIR/), or is dropped if there is none.
 * Returns NULL and sets errno when it cannot be opened. */
ASFILE *asopen(const char *name, const char *mode);

/* Reads up to `count` items of `size` bytes; as fread. The component chooses how much it asks for. */
size_t asread(void *buffer, size_t size, size_t count, ASFILE *file);

/* Writes `count` items of `size` bytes; as fwrite. */
size_t aswrite(const void *buffer, size_t size, size_t count, ASFILE *file);

/* Reads a line as fgets: at most `size` - 1 bytes, up to and with the newline. NULL at the end, or on an error. */
char *asgets(char *buffer, int size, ASFILE *file);

/* True once a read has met the end; as feof. */
int aseof(ASFILE *file);

/* True once something went wrong; as ferror. */
int aserror(ASFILE *file);

/* Moves to `offset` (SEEK_SET, SEEK_CUR, SEEK_END); as fseek. Named outputs, and inputs that are files, can be moved in; streams cannot: -1 and ESPIPE. */
int asseek(ASFILE *file, int64_t offset, int whence);

/* Closes; as fclose. A component must look at what it returns: a full disk may show itself only here. */
int asclose(ASFILE *file);

/* This component's job, or 0. */
uint64_t as_job(void);
/* Which split of the input it has, from 0, and how many there are. */
uint64_t as_split(void);
uint64_t as_splits(void);
/* Counts the attempts at this split, from 1. */
uint64_t as_attempt(void);
/* A text that is the same for every attempt at this split and differs from that of all others: external effects are marked with it, so that
 * doing them twice can be noticed. "" outside of a job. */
const char *as_task_id(void);

#ifdef __cplusplus
}
#endif
#endif
