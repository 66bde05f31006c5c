/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory, and the one policy for running out of it.
 *
 * Every buffer in nolagd has a bound, so running out of memory means that the host
 * is out of it, not that a client asked for too much. These functions therefore end
 * the process with a message that begins with the program's name; they never return NULL.
 * systemd starts nolagd again.
 */
#ifndef NL_PROTOCOL_ALLOC_H
#define NL_PROTOCOL_ALLOC_H

#include <stddef.h>

/* Ends the process as these functions do: for libraries that report what they could not get. */
_Noreturn void nl_out_of_memory(size_t size);

/* Returns size bytes of uninitialised memory (at least one), for free(). */
void *nl_malloc(size_t size);

/* Returns count * size zeroed bytes, for free(). Ends the process if the product overflows. */
void *nl_calloc(size_t count, size_t size);

/* Like realloc(); a size of 0 is treated as 1. */
void *nl_realloc(void *ptr, size_t size);

/* Returns a NUL-terminated copy of the len bytes at s, for free(). */
char *nl_strndup(const char *s, size_t len);
char *nl_strdup(const char *s);

#endif
