/* libasfile: how a component reads its input and writes its outputs, with the interface of stdio.
 *
 * A component is any program that Outrigger runs over stored data (see docs/programs.md). Its
 * input is a stream that another program may still be writing: a read waits for more, and sees the
 * end only when the writer has closed the file. Outputs become visible only when the component has
 * ended with exit code 0 and the whole job has succeeded.
 *
 * Without Outrigger (AS_JOB is not set) the same program works on standard input and output, and on
 * files in the current directory.
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

/* Opens a file. `mode` is "r" or "w".
 *
 * Reading: NULL, "" or "-" is the component's input. If the job asks for its input as a file ({in}),
 * it is that file (AS_INPUT_FILE), which allows asseek; otherwise it is a stream. Any other name is
 * the path of a stored file to look at (--with), or of another input if inputs are files; ENOENT if
 * there is none. Outside of a job it is a file in the current directory. EINVAL for an absolute path
 * or one with "..".
 *
 * Writing: NULL, "" or "-" is the component's unnamed output. The name of an output (--out NAME=...)
 * is that output. Any other name is a file of that name below a directory output (--out DIR/); it is
 * dropped if there is none.
 *
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

/* True once an error has occurred; as ferror. */
int aserror(ASFILE *file);

/* Moves to `offset` (SEEK_SET, SEEK_CUR, SEEK_END); as fseek. It works for named outputs and for
 * inputs that are files. For streams it returns -1, with ESPIPE. */
int asseek(ASFILE *file, int64_t offset, int whence);

/* Closes; as fclose. A component must check the result: a full disk may show only here. */
int asclose(ASFILE *file);

/* This component's job, or 0. */
uint64_t as_job(void);
/* The number of its split of the input, from 0, and the number of splits. */
uint64_t as_split(void);
uint64_t as_splits(void);
/* The number of this attempt at the split, from 1. */
uint64_t as_attempt(void);
/* A text that is the same for every attempt at this split and different for every other split. Mark
 * external effects with it, to notice when they happen twice. "" outside of a job. */
const char *as_task_id(void);

#ifdef __cplusplus
}
#endif
#endif
